"""Values for trackers besides the curves: flat settings, steps to draw over, final values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flsel.runner.cost_axes import COST_AXES, costs
from flsel.runner.result import Result

STEPS = {axis.step: axis for axis in COST_AXES.values() if axis.overview and axis.step != "round"}
"""Axes that curves can be drawn over besides the round, by the name under which they are logged."""
_LAST = 10


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten settings: ``selector: PowD``, ``selector.d: 12``, ``partition.alpha: 0.3``.

    A class stands under its key by its name, its arguments under dotted keys.
    """
    values: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and "class_path" in value:
            values[key] = str(value["class_path"]).rpartition(".")[2]
            values |= flat(value.get("init_args") or {}, f"{key}.")
        elif isinstance(value, Mapping):
            values |= flat(value, f"{key}.")
        else:
            values[key] = value
    return values


def hyper_parameters(settings: Mapping[str, Any], **provenance: Any) -> dict[str, Any]:
    """Return what a tracker stores of a run: flat settings, ``dataset``, ``variant``, where it came from."""
    values = flat(settings)
    variant = values.get("track.variant") or values.get("selector")
    return {**values, "dataset": values.get("data.name"), "variant": variant, **provenance}


class CostTotals:
    """Totals to draw curves over, from evaluation to evaluation, by the names of :data:`STEPS`.

    Args:
        rows: The evaluations before, as of a run that is resumed.
    """

    def __init__(self, rows: Iterable[Mapping[str, float]]) -> None:
        self._totals = dict.fromkeys(STEPS, 0.0)
        for row in rows:
            self.after(row)

    def after(self, row: Mapping[str, float]) -> dict[str, float]:
        """Return the totals after one more evaluation, of the axes that it has."""
        known = dict[str, float]()
        for axis in STEPS.values():
            if not any(name in row for name in axis.columns):
                continue  # such as simulated seconds, without devices
            spent = sum(row.get(name, 0.0) for name in axis.columns)
            self._totals[axis.step] = spent if axis.running else self._totals[axis.step] + spent
            known[axis.step] = self._totals[axis.step]
        return known


def final_values(result: Result) -> dict[str, Any]:
    """Return a run's results by name: ``final/*``, ``last10/*``, ``best/*``, and costs ``to_target/*``.

    A cost of a target that was not reached is what was spent in vain; ``to_target/reached`` tells.
    """
    last = {name: value for name, value in result.last(_LAST).items() if name in result.final}
    groups = {"final": result.final, f"last{_LAST}": last, "best": result.best}
    values: dict[str, Any] = {
        f"{group}/{name}": value
        for group, columns in groups.items()
        for name, value in columns.items()
        if name != "round"
    }
    if result.summary["target"] is not None:
        known = costs(result.history)
        spent = {axis.step: result.to_target(cost=name) for name, axis in COST_AXES.items() if name in known}
        values |= {f"to_target/{step.rpartition('/')[2]}": cost.value for step, cost in spent.items()}
        values |= {"to_target/reached": spent["round"].reached}
        values |= {"rounds_to_target": result.summary.get("rounds_to_target")}
    return values
