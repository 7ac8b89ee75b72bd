"""The value of a pair deciding a claim: points of test accuracy, or the log ratio of costs to a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flsel.comparison.judging.boundaries import FIRST_LOOK
from flsel.comparison.judging.designs import UntilDecided
from flsel.comparison.judging.late_runs import bounds
from flsel.comparison.judging.measures import Target, arrival_name, arrivals
from flsel.comparison.judging.time_to_target import TargetTime
from flsel.comparison.run_table import Run, complete
from flsel.errors import UserError

LIMITS: Mapping[str, str] = {
    "rounds": "rounds", "models": "stop_after_models", "bytes": "stop_after_bytes",
    "trainings": "stop_after_trainings", "simulated_seconds": "time.stop_after_seconds",
}  # fmt: skip
"""Settings that end a run at an amount of a cost."""


@dataclass(frozen=True)
class Deciding:
    """The measure that the claims of a comparison are about.

    A difference is positive where the variant is better. Of accuracies it is in points. Of costs it is
    ``ln(baseline / variant)``, of which a pair with a run that never arrives gives a bound only. So a claim
    about a cost is about the mean of these logarithms.

    Attributes:
        name: ``accuracy``, or the axis of the cost.
        last: Evaluations in the mean at the end, or in the running mean to the target.
        target: Test accuracy to reach, in (0, 1]; None where accuracy decides.
    """

    name: str
    last: int
    target: float | None = None

    @classmethod
    def of(cls, rules: UntilDecided, target: float | None, last: int) -> Deciding:
        """Return what decides by the rules of a comparison; ``last`` and ``target`` as the attributes."""
        return cls(rules.decides, last, target if rules.of_cost else None)

    @property
    def measure(self) -> str:
        """Name of the measure."""
        return f"accuracy/last{self.last}" if self.target is None else arrival_name(self.name, self.last)

    def difference(self, ours: Run, theirs: Run) -> tuple[float, float]:
        """Compare two complete runs of a pair: the ends between which the difference lies.

        They are equal where accuracy decides, and where both runs arrive. Nothing is known of a pair in which
        neither does: minus and plus infinity.

        Raises:
            UserError: If a run does not have the cost.
        """
        if self.target is None:
            points = _points(ours, self.last) - _points(theirs, self.last)
            return points, points
        found = bounds(*(_arrival(run, self.name, self.target, self.last) for run in (ours, theirs)))
        return -found.high, -found.low

    def arrived(self, run: Run) -> bool:
        """Tell whether a complete run reached the target; there is none to miss where accuracy decides."""
        return self.target is None or _arrival(run, self.name, self.target, self.last).reached

    def resolution(self, runs: Sequence[Run], baseline: Sequence[Run]) -> float:
        """Return the smallest step of a difference; 0 where runs do not say.

        Accuracy moves by one test example. A cost moves by one evaluation, and its logarithm by this share of
        the baseline's median arrival. The first six pairs say how much that is, so that no later pair changes
        what an earlier look decided.

        Args:
            runs: All runs.
            baseline: The baseline's runs in a scenario, in the order of the pairs.
        """
        if self.target is None:
            counts = {run.summary.get("test_examples") for run in complete(runs)}
            count = counts.pop() if len(counts) == 1 else None
            return 100 / count if isinstance(count, int) and count > 0 else 0.0
        first = baseline[:FIRST_LOOK]
        if not first:
            return 0.0
        steps = [float(np.median(np.diff(run.columns[self.name]))) for run in first]
        # A run that never arrives counts with all that it spends.
        ends = [_arrival(run, self.name, self.target, self.last).at for run in first]
        return float(np.median(steps) / np.median(ends))


def _arrival(run: Run, cost: str, target: float, window: int) -> TargetTime:
    """Return when a run arrived; if its initial model did, which spent nothing, the next evaluation."""
    if cost not in run.columns:
        raise UserError(f"{run.folder} has no {cost}, which decide this comparison.")
    found = arrivals(run, Target(target), window)[cost]
    spent = run.columns[cost][run.columns[cost] > 0]
    return TargetTime(max(found.at, *spent[:1]), found.reached) if len(spent) else found


def _points(run: Run, last: int) -> float:
    return 100 * float(run.columns["test/accuracy"][-last:].mean())


def budget_of(settings: Mapping[str, Any], cost: str) -> float | None:
    """Return the budget that a run's settings have in a cost; None where there is none."""
    found: Any = settings
    for name in LIMITS.get(cost, "").split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return None if found is None or cost == "rounds" else float(found)
