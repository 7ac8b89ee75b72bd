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
from scipy import stats

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
        left_out: Pairs in which neither arrives.
        side: ``high`` if only runs of the baseline are late, so that the ratio has an upper bound; ``low`` if
            only runs of the variant are; None if runs of both are.
        bound: Mean of the logarithms' bound with its interval, over the pairs that count; None without side.
        only_ours: Pairs in which only the variant arrives.
        only_theirs: Pairs in which only the baseline arrives.
    """

    pairs: int
    exact: int
    left_out: int
    side: str | None
    bound: Estimate | None
    only_ours: int
    only_theirs: int

    @property
    def p_arrival(self) -> float:
        """Two-sided p-value of the exact McNemar test that both arrive equally often."""
        discordant = self.only_ours + self.only_theirs
        return float(stats.binomtest(self.only_ours, discordant).pvalue) if discordant else 1.0


def judge_late(found: Sequence[Bounds]) -> tuple[Paired, LateRuns]:
    """Compare costs over the pairs in which both arrive, with the p-value of the claim over all pairs.

    A claim that the variant is cheaper is tested over the upper ends, and one that it is dearer over the
    lower ends. An infinite end forbids the claim.

    Args:
        found: One for each pair.

    Returns:
        The comparison of the pairs in which both arrive, whose p-values are those of the claim, and the rest.
    """
    counted = [pair for pair in found if pair.counts]
    exact = [pair.low for pair in counted if pair.exact]
    points = compare_pairs(exact, [0.0] * len(exact))
    ends = {"high": [pair.high for pair in counted], "low": [pair.low for pair in counted]}
    side = next((name for name, logs in ends.items() if np.isfinite(logs).all()), None)
    only_ours = sum(math.isfinite(pair.high) and not math.isfinite(pair.low) for pair in counted)
    only_theirs = sum(math.isfinite(pair.low) and not math.isfinite(pair.high) for pair in counted)
    bound, p, p_exact = None, 1.0, 1.0
    if side is not None:
        whole = compare_pairs(ends[side], [0.0] * len(counted))
        bound = whole.difference
        if (bound.value < 0) == (side == "high"):
            p, p_exact = whole.p, whole.p_exact
    late = LateRuns(
        pairs=len(counted),
        exact=len(exact),
        left_out=len(found) - len(counted),
        side=side,
        bound=bound,
        only_ours=only_ours,
        only_theirs=only_theirs,
    )
    improvement, values = points.improvement, points.values
    return Paired(points.difference, p, p_exact, 2.0 ** (1 - len(counted)), improvement, values), late
