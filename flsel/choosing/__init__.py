"""Choosing a selector: a race of all that may be used, until one is within a margin of the best."""
