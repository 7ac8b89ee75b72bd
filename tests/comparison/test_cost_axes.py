"""One entry declares an axis of costs; whatever shows costs shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import flsel
from flsel.runner.cost_axes import COST_AXES, CostAxis, costs
from flsel.runner.trackers import values

SOURCES = Path(flsel.__file__).parent


def test_costs_are_running_totals_in_the_order_of_the_axes():
    columns = {
        "round": np.array([0, 2]), "ledger/bytes_down": np.array([5, 9]), "ledger/bytes_up": np.array([1, 2]),
        "seconds/select": np.array([1.0, 2.0]), "seconds/train": np.array([0.5, 0.5]),
        "seconds/aggregate": np.array([0.0, 1.0]),
    }  # fmt: skip
    found = costs(columns)
    assert list(found) == ["rounds", "bytes", "bytes_down", "bytes_up", "seconds"]
    assert found["bytes"].tolist() == [6, 11]
    assert found["seconds"].tolist() == [1.5, 5.0]


def test_a_new_axis_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Results, trackers, tables, charts and the page take an axis that no other module knows."""
    axis = CostAxis("trainings", "local trainings", "local trainings", "trainings", ("ledger/trainings",))
    monkeypatch.setitem(COST_AXES, axis.name, axis)  # type: ignore[arg-type]
    monkeypatch.setitem(values.STEPS, axis.step, axis)  # made of the axes at import
    for name, end in (("Uniform", 0.5), ("PowD", 0.6)):
        for seed in (1, 2):
            folder = made.run(tmp_path / f"{name}{seed}", made.climb(end), selector=name, seed=seed)
            head, *rows = (folder / "metrics.csv").read_text().splitlines()
            more = [f"{row},{3 * at}" for at, row in enumerate(rows)]
            (folder / "metrics.csv").write_text("\n".join([f"{head},ledger/trainings", *more]) + "\n")
    found = flsel.compare([tmp_path / "*"], target=0.4, last=1)
    result: Any = found.analysis.runs[0].result
    assert result.to_target(0.4, cost="trainings").value == 3 * result.to_target(0.4).value
    assert "total/trainings" in set(found.summary["measure"])
    assert "trainings/target" in set(found.differences["measure"])
    assert '<option value="trainings">local trainings</option>' in found.to_html()
    assert "local trainings" in found.plot_cost(cost="trainings").render("svg").decode()
    assert values.CostTotals([]).after({"ledger/trainings": 4.0})["step/trainings"] == 4.0


def test_the_columns_of_an_axis_are_listed_nowhere_else():
    summed = [axis for axis in COST_AXES.values() if len(axis.columns) > 1]
    for axis in summed:
        naming = {
            path.relative_to(SOURCES).as_posix()
            for path in SOURCES.rglob("*.py")
            if all(f'"{column}"' in path.read_text() for column in axis.columns)
        }
        assert naming == {"runner/cost_axes.py", "metrics.py"} or naming == {"metrics.py"}
