"""Runs judged: what is measured, differences with their intervals, ranks, and verdicts in plain sentences."""
