"""Power and expected seeds of a design, the corrected estimate, and the seeds that a difference needs.

All of it is of the test that decides: intervals that are longer toward the heavier tail. What has no closed
form is simulated with normal differences, which are drawn once.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, special, stats

from flsel.comparison.judging.decisions import Decision, judge_looks
from flsel.comparison.judging.designs import ALPHA, FEWEST_SEEDS, Design
from flsel.comparison.judging.estimates import flat, interval, moments, standard_error
from flsel.rng import generator

POWER = 0.8
_REPETITIONS = 4000
_CORRECTIONS = 1500
_MOST_SEEDS = 1000
# Beyond so many seeds a normal sample's skewness no longer lengthens intervals by more than a hundredth.
_SIMULATED = 64


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


@dataclass(frozen=True)
class SeedsNeeded:
    """Seeds that give 80 % power for an observed difference, with the 95 % interval; None is more than 1,000.

    Attributes:
        value: For the difference as it was observed.
        low: If the difference is as large as its interval allows.
        high: If it is as small.
    """

    value: int | None
    low: int | None
    high: int | None


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
    return float(judged.numbers["mean"][np.arange(_CORRECTIONS), judged.stops()].mean())


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
    return _fewest(lambda n: _fixed_power(effect / sd, design, sd, n))


def seeds_needed(differences: np.ndarray, comparisons: int = 1, alpha: float = ALPHA) -> SeedsNeeded | None:
    """Return the seeds with which the test finds the difference that was observed, with power 0.8.

    Args:
        differences: ``[n]``.
        comparisons: Comparisons for which the test is corrected (Bonferroni).
        alpha: Chance of any false claim.

    Returns:
        None below two pairs.
    """
    n = len(differences)
    if n < 2:
        return None
    if flat(differences):
        # Differences that are all one number are decided by the exact sign test.
        needed = max(FEWEST_SEEDS, seeds_to_reject(comparisons, alpha)) if differences[0] else None
        return SeedsNeeded(needed, needed, needed)
    seen = abs(float(np.mean(differences))) / float(np.std(differences, ddof=1))
    return _seeds_for(seen, n, alpha / comparisons)


@functools.lru_cache(maxsize=1024)
def _seeds_for(seen: float, n: int, level: float) -> SeedsNeeded:
    """Return the seeds for an effect in standard deviations; every form of a report asks for it."""
    low, high = _effect_interval(seen, n)
    found = (
        _fewest(lambda n, effect=effect: float(_power(effect * math.sqrt(n), n, level)))  # type: ignore[misc]
        for effect in (seen, high, low)
    )
    return SeedsNeeded(*found)


def seeds_to_reject(comparisons: int = 1, alpha: float = ALPHA) -> int:
    """Return the fewest pairs with which the exact test can reject, corrected for so many tests."""
    return 1 + math.ceil(math.log2(comparisons / alpha) - 1e-9)


def resolvable(differences: np.ndarray, comparisons: int = 1, alpha: float = ALPHA) -> float:
    """Return the smallest true difference that as many new pairs find with power 0.8; NaN below five.

    The spread is known from these pairs only, so that the power is a mean over spreads that they may have.

    Args:
        differences: ``[n]``.
        comparisons: Comparisons for which the test is corrected (Bonferroni).
        alpha: Chance of any false claim.
    """
    n = len(differences)
    if n < FEWEST_SEEDS:
        return math.nan  # they carry no claim
    if flat(differences):
        return 0.0
    return _found_shift(n, alpha / comparisons) * standard_error(differences)


def pooled_sd(samples: Sequence[np.ndarray]) -> float:
    """Return the standard deviation of several samples, each about its own mean; NaN of nothing."""
    freedom = sum(len(values) - 1 for values in samples if len(values) > 1)
    if not freedom:
        return math.nan
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in samples if len(values) > 1)
    return math.sqrt(squares / freedom)


def _fewest(power: Callable[[int], float]) -> int | None:
    """Return the fewest seeds that carry a claim and have power 0.8; None beyond 1,000."""
    numbers = range(FEWEST_SEEDS, _MOST_SEEDS + 1)
    at = bisect_left(numbers, POWER, key=power)
    return numbers[at] if at < len(numbers) else None


def _fixed_power(effect: float, design: Design, sd: float, n: int) -> float:
    """Return the chance that one look at n pairs decides a claim about an effect in standard deviations."""
    if design.margin is None:
        return float(_power(abs(effect) * math.sqrt(n), n, design.alpha / design.comparisons))
    margin = design.margin / sd
    if n <= _SIMULATED:
        once = Design.fixed(n, design.comparisons, margin, design.alpha)
        claims = judge_looks(effect + _noise(_REPETITIONS, _SIMULATED)[:, :n], once).claim[:, 0]
        return float((claims < 3).mean())
    spread, shift = _spreads(n)[::10], effect * math.sqrt(n)
    outer, inner = (
        stats.t.ppf(1 - design.alpha / (sides * design.comparisons), n - 1) * spread for sides in (2, 1)
    )
    # A claim stays open where the mean is too large for equivalence and too small for a direction.
    near, cdf = np.minimum(np.clip(margin * math.sqrt(n) - inner, 0.0, None), outer), special.ndtr
    undecided = cdf(outer - shift) - cdf(near - shift) + cdf(-near - shift) - cdf(-outer - shift)
    return float(1 - undecided.mean())


def _power(shift: float | np.ndarray, n: int, level: float) -> np.ndarray:
    """Return how often n pairs exclude zero, two-sided, for means of ``shift`` standard errors."""
    shift = np.asarray(shift, dtype=float)
    if n <= _SIMULATED:
        above, below = _reached(n, level)
        return np.asarray((np.searchsorted(above, shift) + np.searchsorted(below, -shift)) / len(above))
    # The noncentral t's tails, averaged over the spread that is observed: SciPy's own are NaN far out.
    edge = stats.t.ppf(1 - level / 2, n - 1) * _spreads(n)
    tails = special.ndtr(shift[..., None] - edge) + special.ndtr(-shift[..., None] - edge)
    return np.asarray(tails.mean(axis=-1))


@functools.lru_cache(maxsize=512)
def _reached(n: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return by how many standard errors samples must be moved up, or down, to exclude zero; sorted."""
    found = moments(_noise(_REPETITIONS, _SIMULATED)[:, :n])
    low, high = interval(*found, n, float(stats.t.ppf(1 - level / 2, n - 1)))
    return np.sort(-low * math.sqrt(n)), np.sort(high * math.sqrt(n))


@functools.lru_cache(maxsize=256)
def _found_shift(n: int, level: float) -> float:
    """Return the mean, in standard errors as n pairs show them, that n other pairs find with power 0.8."""
    spread = _spreads(n)[::40]
    return float(optimize.brentq(lambda k: float(_power(k * spread, n, level).mean()) - POWER, 0.0, 1e4))


def _effect_interval(seen: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of an effect in standard deviations, by inverting the noncentral t law."""
    t, tail = seen * math.sqrt(n), 0.025

    def above(shift: float) -> float:
        """The chance of a t statistic beyond the observed one."""
        return float(np.mean(special.ndtr(shift - t * _spreads(n))))

    reach = 40.0 + t * float(_spreads(n)[-1])
    low = optimize.brentq(lambda shift: above(shift) - tail, -reach, reach)
    high = optimize.brentq(lambda shift: above(shift) - (1 - tail), -reach, reach)
    return max(0.0, low) / math.sqrt(n), high / math.sqrt(n)


@functools.lru_cache(maxsize=256)
def _spreads(n: int) -> np.ndarray:
    """Return observed over true standard deviation of n normal values, at 4,000 steps of probability."""
    steps = (np.arange(4000) + 0.5) / 4000
    return np.asarray(np.sqrt(stats.chi2.ppf(steps, n - 1) / (n - 1)))


@functools.lru_cache(maxsize=4)
def _noise(repetitions: int, n: int) -> np.ndarray:
    return generator(0, "sequential", repetitions).standard_normal((repetitions, n))
