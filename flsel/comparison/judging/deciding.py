"""The value of a pair deciding a claim: a gain in the runs' score, or the log ratio of costs to a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flsel.comparison.judging.measures import Target, arrival_name, arrivals, end_name
from flsel.comparison.judging.time_to_target import TargetTime
from flsel.comparison.run_table import Run, complete
from flsel.errors import UserError
from flsel.metrics import SCORE, Score

LIMITS: Mapping[str, str] = {
    "rounds": "rounds", "models": "stop_after_models", "bytes": "stop_after_bytes",
    "bytes_down": "stop_after_bytes_down", "bytes_up": "stop_after_bytes_up",
    "trainings": "stop_after_trainings", "simulated_seconds": "time.stop_after_seconds",
}  # fmt: skip
"""Settings that end a run at an amount of a cost; none does at wall time, on which no result may depend."""


@dataclass(frozen=True)
class Deciding:
    """The measure that the claims of a comparison are about.

    A difference is positive where the variant is better. Of accuracies it is in points, of other scores in
    their own unit. Of costs it is ``ln(baseline / variant)``, of which a pair with a run that never arrives
    gives a bound only. So a claim about a cost is about the mean of these logarithms.

    Attributes:
        name: ``accuracy``, which stands for the runs' score, or the axis of the cost.
        last: Evaluations in the mean at the end, or in the running mean to the target.
        target: Score to reach; None where the score itself decides.
        score: What the runs are judged by.
    """

    name: str
    last: int
    target: float | None = None
    score: Score = SCORE

    @property
    def measure(self) -> str:
        """Name of the measure."""
        if self.target is None:
            return end_name(self.score, self.last)
        return arrival_name(self.name, self.last)

    @property
    def widest(self) -> float:
        """Largest difference that there can be: 100 points of a share."""
        return 100.0 if self.target is None and self.score.is_share else math.inf

    def difference(self, ours: Run, theirs: Run) -> tuple[float, float]:
        """Compare two complete runs of a pair: the ends between which the difference lies.

        They are equal where the score decides, and where both runs arrive. Nothing is known of a pair in
        which neither does: minus and plus infinity.

        Raises:
            UserError: If a run does not have the cost.
        """
        (low, high), (least, most) = self.value(ours), self.value(theirs)
        return low - most, high - least

    def value(self, run: Run) -> tuple[float, float]:
        """Return the ends between which a complete run's value lies, larger where it is better.

        It is the score, times what makes differences gains, or minus the logarithm of the cost. A run that
        never arrives costs more than it spent: its lower end is minus infinity.

        Raises:
            UserError: If the run does not have the cost.
        """
        if self.target is None:
            end = self._end(run)
            return end, end
        found = self._arrival(run)
        return -math.log(found.at) if found.reached else -math.inf, -math.log(found.at)

    def arrived(self, run: Run) -> bool:
        """Tell whether a complete run reached the target; there is none to miss where the score decides."""
        return self.target is None or self._arrival(run).reached

    def resolution(self, runs: Sequence[Run], first: Sequence[Run]) -> float:
        """Return the smallest step of a difference; 0 where runs do not say.

        Accuracy moves by one test example. A cost moves by one evaluation, and its logarithm by this share of
        the median arrival. The first runs say how much that is, so that no later run changes what an earlier
        look decided.

        Args:
            runs: All runs.
            first: Complete runs of the first look that a cost is measured by.
        """
        if self.target is None and not self.score.is_share:
            return 0.0
        if self.target is None:
            counts = {run.summary.get("test_examples") for run in complete(runs)}
            count = counts.pop() if len(counts) == 1 else None
            return 100 / count if isinstance(count, int) and count > 0 else 0.0
        if not first:
            return 0.0
        steps = [float(np.median(np.diff(run.columns[self.name]))) for run in first]
        # A run that never arrives counts with all that it spends.
        ends = [self._arrival(run).at for run in first]
        return float(np.median(steps) / np.median(ends))

    def _arrival(self, run: Run) -> TargetTime:
        """Return when a run arrived; if its initial model did, which spent nothing, the next evaluation."""
        if self.name not in run.columns:
            raise UserError(f"{run.folder} has no {self.name}, which decide this comparison.")
        goal = Target(self.target or 0.0, score=self.score)
        found = arrivals(run, goal, self.last)[self.name]
        spent = run.columns[self.name][run.columns[self.name] > 0]
        return TargetTime(max(found.at, *spent[:1]), found.reached) if len(spent) else found

    def _end(self, run: Run) -> float:
        """Return the mean at a run's end, times what makes differences gains."""
        return self.score.gains * float(run.columns[self.score.column][-self.last :].mean())


def budget_of(settings: Mapping[str, Any], cost: str) -> float | None:
    """Return the budget that a run's settings have in a cost; None where there is none."""
    found: Any = settings
    for name in LIMITS.get(cost, "").split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return None if found is None or cost == "rounds" else float(found)
