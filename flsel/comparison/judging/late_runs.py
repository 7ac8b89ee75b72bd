"""Costs to a target in pairs of runs of which some never arrive: bounds, and the claims that they allow.

A run that does not arrive costs at least what it had spent when it ended. So a pair with one such run is a
half line: it bounds the ratio on one side. A pair in which neither arrives says nothing and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flsel.comparison.judging.designs import LEVEL, Design
from flsel.comparison.judging.estimates import Estimate, Paired, compare_pairs
from flsel.comparison.judging.time_to_target import TargetTime


class Bounds(NamedTuple):
    """Possible logarithms of the ratio of the variant's cost to the baseline's in a pair."""

    low: float
    high: float

    @property
    def counts(self) -> bool:
        """Whether the pair says something."""
        return math.isfinite(self.low) or math.isfinite(self.high)

    @property
    def exact(self) -> bool:
        """Whether both runs arrived."""
        return self.low == self.high


def bounds(ours: TargetTime, theirs: TargetTime) -> Bounds:
    """Return what a pair says about the logarithm of the ratio of the costs, both > 0."""
    if not ours.reached and not theirs.reached:
        return Bounds(-math.inf, math.inf)
    log = math.log(ours.at / theirs.at)
    return Bounds(log if theirs.reached else -math.inf, log if ours.reached else math.inf)


@dataclass(frozen=True)
class LateRuns:
    """What is known of a ratio of costs where some runs never arrive.

    Attributes:
        pairs: Pairs that count.
        exact: Of these the pairs in which both runs arrive.
        side: ``high`` if only runs of the baseline are late, so that the ratio has an upper bound; ``low`` if
            only runs of the variant are; None if runs of both are.
        bound: Mean of the logarithms' bound with its interval, over the pairs that count; None without side.
    """

    pairs: int
    exact: int
    side: str | None
    bound: Estimate | None


def compare_late(
    found: Sequence[Bounds], design: Design | None = None, level: float = LEVEL
) -> tuple[Paired, LateRuns]:
    """Compare costs over the pairs in which both arrive, and bound their ratio over all pairs that count."""
    counted = [pair for pair in found if pair.counts]
    exact = [pair.low for pair in counted if pair.exact]
    ends = {"high": [pair.high for pair in counted], "low": [pair.low for pair in counted]}
    side = next((name for name, logs in ends.items() if np.isfinite(logs).all()), None)
    bound = None
    if side is not None:
        bound = compare_pairs(ends[side], [0.0] * len(counted), design, level).difference
    points = compare_pairs(exact, [0.0] * len(exact), design, level)
    return points, LateRuns(len(counted), len(exact), side, bound)
