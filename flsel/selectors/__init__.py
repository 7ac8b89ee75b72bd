"""Client selectors: one file, one class each."""
