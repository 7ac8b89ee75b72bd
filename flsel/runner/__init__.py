"""A run from its settings to its files: built, played, recorded, tracked, resumed."""
