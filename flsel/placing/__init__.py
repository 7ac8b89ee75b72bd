"""Placing a selector on an atlas: only the new selector runs, and is paired with committed results."""
