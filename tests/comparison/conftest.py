"""Comparisons are tested without figures, but in tests marked ``figures``."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def few_figures(figures_where_they_are_tested: None) -> None:
    """Ask for it in every test."""
