"""Power and expected seeds of a design, the corrected estimate, and the fixed design that it replaces."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from flsel.comparison.judging.decisions import Decision, judge_looks
from flsel.comparison.judging.designs import ALPHA, Design
from flsel.rng import generator

_REPETITIONS = 4000
_CORRECTIONS = 1500
_MOST_SEEDS = 1000
POWER = 0.8


@dataclass(frozen=True)
class Expected:
    """Expected result of a claim, for one true difference.

    Attributes:
        difference: The true mean difference, in units of the differences.
        better: Chance of "better".
        worse: Chance of "worse".
        equivalent: Chance of "equivalent".
        open: Chance to stay open.
        seeds: Expected seeds of the variant.
        looks: Numbers of seeds at the looks.
        stops: Chance to stop at each of them.
    """

    difference: float
    better: float
    worse: float
    equivalent: float
    open: float
    seeds: float
    looks: tuple[int, ...]
    stops: tuple[float, ...]

    def slowest(self, variants: int) -> float:
        """Return the expected seeds of the slowest of several independent variants, as the baseline runs."""
        reached = np.cumsum(self.stops) ** variants
        return float(np.array(self.looks) @ np.diff(reached, prepend=0.0))


def expected(difference: float, sd: float, design: Design, repetitions: int = _REPETITIONS) -> Expected:
    """Simulate what becomes of a claim about normal differences.

    Args:
        difference: The true mean difference.
        sd: Standard deviation of the differences, > 0.
        design: The rules.
        repetitions: Simulated comparisons.
    """
    judged = judge_looks(difference + sd * _noise(repetitions, design.maximum), design)
    stops = judged.stops()
    claims = judged.claim[np.arange(repetitions), stops]
    better, worse, equivalent = (float((claims == kind).mean()) for kind in range(3))
    shares = np.bincount(stops, minlength=len(judged.looks)) / repetitions
    seeds = float(np.array(judged.looks) @ shares)
    still = max(0.0, 1 - better - worse - equivalent)
    return Expected(difference, better, worse, equivalent, still, seeds, judged.looks, tuple(shares.tolist()))


def corrected_estimate(decision: Decision, design: Design) -> float:
    """Return the estimate without the bias that stopping early gives it (Whitehead 1986).

    It is the true difference for which the mean at the stop, over many comparisons of this design with the
    observed spread, is the observed mean. Estimates of claims that were decided early stay too large even so.

    Args:
        decision: With one look or more.
        design: The rules.
    """
    end = decision.looks[-1]
    if end.sd == 0:
        return end.mean
    scaled = replace(design, margin=None if design.margin is None else design.margin / end.sd)
    observed = end.mean / end.sd
    truth = observed
    for _ in range(4):
        truth += observed - _mean_at_stop(round(truth, 6), scaled)
    return truth * end.sd


@functools.lru_cache(maxsize=1024)
def _mean_at_stop(effect: float, design: Design) -> float:
    judged = judge_looks(effect + _noise(_CORRECTIONS, design.maximum), design)
    return float(judged.mean[np.arange(_CORRECTIONS), judged.stops()].mean())


def fixed_seeds(effect: float, design: Design, sd: float) -> int | None:
    """Return the seeds of a fixed design that decides as much with 80 % power, if the truth is a difference.

    The fixed design looks once. It tests the same claims at the same family-wise error rate (Bonferroni).

    Args:
        effect: The true mean difference.
        design: The rules of the sequential one.
        sd: Standard deviation of the differences, > 0.

    Returns:
        None where more than 1,000 seeds would be needed.
    """
    numbers = range(3, _MOST_SEEDS + 1)
    at = bisect_left(numbers, POWER, key=lambda n: _fixed_power(effect, design, sd, n))
    return numbers[at] if at < len(numbers) else None


def _fixed_power(effect: float, design: Design, sd: float, n: int) -> float:
    """Return the chance that one look at n pairs decides a claim about normal differences."""
    error = sd / math.sqrt(n)
    # The spread that is seen, at midpoints of equal probabilities.
    spread = np.sqrt(stats.chi2.ppf((np.arange(400) + 0.5) / 400, n - 1) / (n - 1))
    outer = stats.t.ppf(1 - ALPHA / (2 * design.comparisons), n - 1) * spread
    room = np.zeros_like(outer)
    if design.margin is not None:
        inner = stats.t.ppf(1 - ALPHA / design.comparisons, n - 1) * spread
        room = np.clip(design.margin / error - inner, 0.0, None)
    # A claim stays open where the mean is too large for equivalence and too small for a direction.
    near, far, cdf, shift = np.minimum(room, outer), outer, stats.norm.cdf, effect / error
    undecided = cdf(far - shift) - cdf(near - shift) + cdf(-near - shift) - cdf(-far - shift)
    return float(1 - undecided.mean())


def pooled_sd(samples: Sequence[np.ndarray]) -> float:
    """Return the standard deviation of several samples, each about its own mean; NaN of nothing."""
    freedom = sum(len(values) - 1 for values in samples if len(values) > 1)
    if not freedom:
        return math.nan
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in samples if len(values) > 1)
    return math.sqrt(squares / freedom)


@functools.lru_cache(maxsize=4)
def _noise(repetitions: int, n: int) -> np.ndarray:
    return generator(0, "sequential", repetitions).standard_normal((repetitions, n))
