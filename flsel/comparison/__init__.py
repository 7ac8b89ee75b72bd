"""Runs judged against one another: a grid of selectors, scenarios and seeds, from runs to report."""
