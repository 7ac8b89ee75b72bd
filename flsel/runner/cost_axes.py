"""The axes along which a run spends: rounds, models, bytes, passes, wall seconds and simulated seconds.

Results, trackers, dashboards, tables and charts read :data:`COST_AXES`. So a new axis is one entry of it. The
ledger (:mod:`flsel.metrics`) counts what a round costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flsel.metrics import ROUND_SECONDS


@dataclass(frozen=True)
class CostAxis:
    """One way to count what a run spends; less of it is better.

    Attributes:
        name: Its name in settings and in the columns of results.
        label: What a sentence or a table calls it.
        title: Title of an axis that shows it.
        unit: What its numbers count.
        columns: Columns of ``metrics.csv``, whose sum is the cost.
        running: Whether the columns hold totals; else they hold what one evaluation adds.
        step: Name under which trackers log it.
        prefixed: Whether large numbers are written with a prefix, as in 5 MB.
        overview: Whether trackers and dashboards draw curves over it; tables and reports have every axis.
        always: Whether every round spends some of it, so that ratios of two runs exist.
    """

    name: str
    label: str
    title: str
    unit: str
    columns: tuple[str, ...]
    running: bool = True
    step: str = ""
    prefixed: bool = True
    overview: bool = True
    always: bool = True

    def __post_init__(self) -> None:
        if not self.step:
            object.__setattr__(self, "step", f"step/{self.name}")

    @property
    def format(self) -> str:
        """How charts write its numbers, in d3's words: bytes with prefixes, seconds without."""
        return "~s" if self.prefixed else "~r"

    def spent(self, columns: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Return what was spent up to each evaluation, ``[E]``; None where a column is missing.

        Args:
            columns: Columns of ``metrics.csv`` by name, each ``[E]``.
        """
        if not all(name in columns for name in self.columns):
            return None
        parts = [columns[name] for name in self.columns]
        total = parts[0] if len(parts) == 1 else np.sum(parts, axis=0)
        return total if self.running else np.cumsum(total)


_DOWN, _UP = "ledger/bytes_down", "ledger/bytes_up"
COST_AXES: Mapping[str, CostAxis] = {
    axis.name: axis
    for axis in (
        CostAxis(
            "rounds", "rounds", "communication rounds", "rounds", ("round",),
            step="round", prefixed=False,
        ),
        CostAxis(
            "models", "models sent down", "models sent to clients", "models", ("ledger/models_down",),
            overview=False,
        ),
        CostAxis("bytes", "bytes sent", "bytes sent", "bytes", (_DOWN, _UP)),
        CostAxis("bytes_down", "bytes sent down", "bytes sent to clients", "bytes", (_DOWN,), overview=False),
        CostAxis("bytes_up", "bytes sent up", "bytes sent to the server", "bytes", (_UP,), overview=False),
        CostAxis(
            "passes", "forward passes", "forward passes of clients", "passes", ("ledger/passes",),
            always=False,
        ),
        CostAxis(
            "trainings", "local trainings", "local trainings", "trainings", ("ledger/trainings",),
            overview=False,
        ),
        CostAxis(
            "seconds", "seconds", "seconds of selecting and training", "seconds", ROUND_SECONDS,
            running=False, prefixed=False,
        ),
        CostAxis(
            "simulated_seconds", "simulated seconds", "simulated seconds on the clients' devices",
            "simulated seconds", ("clock/seconds",), prefixed=False,
        ),
    )
}  # fmt: skip
"""Every axis by its name, in the order of tables; a run has those whose columns it has."""


def costs(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what was spent up to each evaluation, by the name of the axis, as far as the columns have it.

    Args:
        columns: Columns of ``metrics.csv`` by name, each ``[E]``.
    """
    spent_by_axis = {axis.name: axis.spent(columns) for axis in COST_AXES.values()}
    return {name: spent for name, spent in spent_by_axis.items() if spent is not None}
