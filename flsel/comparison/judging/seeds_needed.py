"""Compute the number of seeds that a difference needs, and the difference that a number of seeds detects."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from flsel.comparison.judging.estimates import LEVEL, flat, standard_error

POWER = 0.8
_MOST_SEEDS = 1000


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


def seeds_to_reject(comparisons: int = 1) -> int:
    """Return the fewest pairs with which the exact test can reject at 5 %, corrected for so many tests."""
    return 1 + math.ceil(math.log2(comparisons / (1 - LEVEL)) - 1e-9)


def resolvable(differences: np.ndarray, comparisons: int = 1) -> float:
    """Return the smallest true difference that the paired t test finds with power 0.8; NaN below two.

    Args:
        differences: ``[n]``.
        comparisons: Comparisons for which the test is corrected (Bonferroni).
    """
    n = len(differences)
    if n < 2:
        return math.nan
    if flat(differences):
        return 0.0
    return _found_shift(n, 1 - (1 - LEVEL) / comparisons) * standard_error(differences)


def seeds_needed(differences: np.ndarray, comparisons: int = 1) -> SeedsNeeded | None:
    """Return the seeds with which a t test finds the difference that was observed, with power 0.8.

    Args:
        differences: ``[n]``.
        comparisons: Comparisons for which the test is corrected (Bonferroni).

    Returns:
        None below two pairs.
    """
    n = len(differences)
    if n < 2:
        return None
    if flat(differences):
        return SeedsNeeded(2, 2, 2) if differences[0] else SeedsNeeded(None, None, None)
    spread = float(np.std(differences, ddof=1))
    seen = abs(float(np.mean(differences))) / spread
    low, high = _effect_interval(seen, n)
    level = 1 - (1 - LEVEL) / comparisons
    return SeedsNeeded(*(_seeds_for(effect, level) for effect in (seen, high, low)))


def _seeds_for(effect: float, level: float) -> int | None:
    """Return the pairs that find an effect in standard deviations; None beyond 1,000."""
    numbers = range(2, _MOST_SEEDS + 1)
    found = bisect_left(numbers, POWER, key=lambda n: _power(effect * math.sqrt(n), n, level))
    return numbers[found] if found < len(numbers) else None


def _effect_interval(seen: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of an effect in standard deviations, by inverting the noncentral t law."""
    t, tail = seen * math.sqrt(n), (1 - LEVEL) / 2

    def above(shift: float) -> float:
        """The chance of a t statistic beyond the observed one."""
        return float(np.mean(special.ndtr(shift - t * _spreads(n))))

    reach = 40.0 + t * float(_spreads(n)[-1])
    low = optimize.brentq(lambda shift: above(shift) - tail, -reach, reach)
    high = optimize.brentq(lambda shift: above(shift) - (1 - tail), -reach, reach)
    return max(0.0, low) / math.sqrt(n), high / math.sqrt(n)


def _power(shift: float, n: int, level: float = LEVEL) -> float:
    """Return how often the two-sided t test of n pairs rejects, for a mean of ``shift`` errors.

    The noncentral t's tails, averaged over the spread that is observed: SciPy's own are NaN far out.
    """
    edge = stats.t.ppf((1 + level) / 2, n - 1) * _spreads(n)
    return float(np.mean(special.ndtr(shift - edge) + special.ndtr(-shift - edge)))


@functools.lru_cache(maxsize=256)
def _found_shift(n: int, level: float) -> float:
    """Return the mean in errors that the t test of n pairs finds with power 0.8."""
    return float(optimize.brentq(lambda shift: _power(shift, n, level) - POWER, 0.0, 1e4))


@functools.lru_cache(maxsize=256)
def _spreads(n: int) -> np.ndarray:
    """Return observed over true standard deviation of n normal values, at 4,000 steps of probability."""
    steps = (np.arange(4000) + 0.5) / 4000
    return np.asarray(np.sqrt(stats.chi2.ppf(steps, n - 1) / (n - 1)))
