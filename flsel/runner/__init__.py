"""A run from its settings to its files: built, executed, recorded, tracked, resumed."""
