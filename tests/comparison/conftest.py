"""Reports of comparisons have no figures, which take a second each, but in tests marked ``figures``."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def figures_where_they_are_tested(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no figures beside a report, unless the test is about them."""
    if request.node.get_closest_marker("figures") is None:
        monkeypatch.setattr("flsel.comparison.reporting.figures.write_charts", lambda analysis, folder: [])
