"""Comparisons that play seeds until their claims are decided: boundaries, decisions, plans."""
