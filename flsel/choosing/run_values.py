"""The value of a run in a race, larger where it is better: points of accuracy, or minus the log of a cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flsel.comparison.judging.measures import Target, arrivals
from flsel.comparison.run_table import Run
from flsel.errors import UserError


@dataclass(frozen=True)
class Valued:
    """What decides a race.

    Attributes:
        name: ``accuracy``, or the axis of the cost.
        last: Evaluations in the mean at the end, or in the running mean to the target.
        target: Test accuracy to reach, in (0, 1]; None where accuracy decides.
    """

    name: str
    last: int
    target: float | None = None

    def of(self, run: Run) -> tuple[float, float]:
        """Return the ends between which a complete run's value lies.

        A run that never arrives costs more than it spent: its lower end is minus infinity.

        Raises:
            UserError: If the run does not have the cost.
        """
        if self.target is None:
            points = 100 * float(run.columns["test/accuracy"][-self.last :].mean())
            return points, points
        if self.name not in run.columns:
            raise UserError(f"{run.folder} has no {self.name}, which decide this race.")
        spent = run.columns[self.name]
        found = arrivals(run, Target(self.target), self.last)[self.name]
        # An initial model that is there already costs what the next evaluation does.
        cost = max(found.at, *spent[spent > 0][:1])
        return -math.log(cost) if found.reached else -math.inf, -math.log(cost)

    def resolution(self, runs: Sequence[Run]) -> float:
        """Return the smallest step of a value; 0 where it is not known.

        Accuracy moves by one test example. A cost moves by one evaluation, and its logarithm by this share of
        the median arrival.

        Args:
            runs: Complete runs of the first look.
        """
        if self.target is None:
            counts = {run.summary.get("test_examples") for run in runs}
            count = counts.pop() if len(counts) == 1 else None
            return 100 / count if isinstance(count, int) and count > 0 else 0.0
        steps = [float(np.median(np.diff(run.columns[self.name]))) for run in runs]
        costs = [math.exp(-self.of(run)[1]) for run in runs]
        return float(np.median(steps) / np.median(costs)) if runs else 0.0

    def shown(self, value: float) -> str:
        """Write the mean of values: an accuracy, or a cost as the geometric mean."""
        from flsel.comparison.judging.formatting import number

        if math.isnan(value):
            return "-"
        if self.target is None:
            return f"{value:.1f} %"
        return number(math.exp(-value), "bytes" if self.name.startswith("bytes") else "")
