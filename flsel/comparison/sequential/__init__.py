"""Comparisons that add seeds until their claims are decided: boundaries, decisions, plans."""
