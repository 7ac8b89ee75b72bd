"""Runs judged against one another: a grid of selectors, settings and seeds, played, measured and reported."""
