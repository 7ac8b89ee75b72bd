"""What runs of a variant show by themselves: means, costs to the target, differences to the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flsel.comparison.judging.estimates import (
    Estimate,
    compare_pairs,
    untied,
    welch_interval,
)
from flsel.comparison.judging.measures import Kind
from flsel.comparison.judging.settings import Options
from flsel.comparison.judging.time_to_target import TargetTime

Side = Mapping[int, TargetTime]
"""By seed the values of one side; all are reached but costs to a target that a run did not reach."""


@dataclass(frozen=True)
class Summary:
    """One measure of one variant in one scenario.

    Attributes:
        mean: Mean over the seeds with its interval.
        iqm: Interquartile mean.
        values: By seed.
    """

    mean: Estimate
    iqm: float
    values: Mapping[int, float]


@dataclass(frozen=True)
class Difference:
    """A variant against the baseline in a measure and a scenario, described by itself.

    A run that does not arrive costs at least what it had spent when it ended. So a pair with one such run
    bounds the ratio on one side. A pair in which neither arrives says nothing and is left out.

    Attributes:
        kind: Difference or ratio; of a ratio all numbers are of natural logarithms.
        estimate: Mean with its interval; where runs are late, over the pairs in which both arrive.
        p: Two-sided p-value of the interval: the level at which it would just exclude zero. Where all values
            are the same number, that of the exact sign-flip test; 1 where all are zero. NaN of several looks.
        values: The differences of these pairs, ``[n]``; none of runs that are not paired.
        seeds: Seeds of these pairs.
        paired: Whether runs are compared seed by seed.
        censored: How many runs of the two had not reached the target.
        pairs: Pairs that say something, also those in which one run is late.
        side: ``high`` if only runs of the baseline are late, so that the ratio has an upper bound; ``low`` if
            only runs of the variant are; else None.
        bound: Mean of the bound with its interval, over the pairs that say something; None without side.
    """

    kind: Kind
    estimate: Estimate
    p: float
    values: np.ndarray
    seeds: tuple[int, ...]
    paired: bool
    censored: int = 0
    pairs: int = 0
    side: Literal["low", "high"] | None = None
    bound: Estimate | None = None

    @property
    def shown(self) -> Estimate:
        """The difference, or the ratio, with its own interval."""
        return self.estimate.map(np.exp) if self.kind == "ratio" else self.estimate


def compare(
    kind: Kind, sides: tuple[Side, Side], options: Options, *, paired: bool, most: float = math.inf
) -> Difference | None:
    """Compare a variant's values with the baseline's; of unpaired runs that are late, those that arrive.

    Args:
        kind: Whether differences or ratios are compared.
        sides: Values of the variant and of the baseline, of the same seeds where they are paired.
        options: How they are judged.
        paired: Whether they are compared seed by seed.
        most: Largest difference that there can be.

    Returns:
        None where there is nothing to compare, or one of them spends nothing, so that a ratio says nothing.
    """
    at = [np.array([found.at for found in side.values()], dtype=float) for side in sides]
    reached = [np.array([found.reached for found in side.values()], dtype=bool) for side in sides]
    late, level = sum(int((~side).sum()) for side in reached), options.level
    if not all(map(len, at)) or late == sum(map(len, at)):
        return None
    if kind == "ratio":
        if min(side.min() for side in at) <= 0:
            return None
        at = [np.log(side) for side in at]
    if not paired:
        one, two = (side[there] for side, there in zip(at, reached, strict=True))
        if not len(one) or not len(two):
            return None
        found, p = welch_interval(one, two, level)
        found = found.map(lambda x: float(np.clip(x, -most, most)))
        return Difference(kind, found, 1.0 if late else p, np.zeros(0), (), paired, late)
    apart, (ours, theirs) = untied(*at), reached
    exact, known = ours & theirs, ours | theirs
    found, p = compare_pairs(apart[exact], options.looks, level)
    found = found.map(lambda x: float(np.clip(x, -most, most)))
    seeds = tuple(seed for seed, both in zip(sides[0], exact, strict=True) if both)
    # A pair has an upper end where the variant arrives, and a lower end where the baseline does.
    side: Literal["low", "high"] | None = (
        "high" if ours[known].all() else "low" if theirs[known].all() else None
    )
    side = side if late else None
    bound = None if side is None else compare_pairs(apart[known], options.looks, level)[0]
    return Difference(kind, found, p, apart[exact], seeds, paired, late, int(known.sum()), side, bound)
