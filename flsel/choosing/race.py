"""A race over paired seeds: bounds of differences, who is left, and when the leader is good enough.

The value of a variant in a seed is larger where it is better. A race ends when no variant that is left can be
more than the margin better than the leader. The leading axis of every array holds races, so that simulations
(``benchmarks/choosing.py``) use the code of the command.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

FIRST_LOOK = 3
DEFAULT_MAX_SEEDS = 40
FEWEST_BOUNDED = 5
"""Differences below which a pair with a run that never arrives bounds nothing."""
MOST_PRIOR = 4.0
"""Seeds that the spread of all pairs counts for, at most, in the spread of one pair."""
_FEWEST_POOLED = 5
# Normal quantiles at which the best variant is wrongly passed in 5 % of races, whatever the spreads of the
# variants; by the number of variants. `python benchmarks/choosing.py --calibrate` prints them.
_VARIANTS = (2, 3, 5, 8, 12, 23, 40, 80)
_QUANTILES = (2.46, 2.67, 2.88, 3.05, 3.13, 3.27, 3.38, 3.48)


def looks(maximum: int) -> tuple[int, ...]:
    """Return the numbers of seeds at which a race is looked at: 3, 4, ..., 8, 10, 12, 15, ... and the last.

    Args:
        maximum: Most seeds, >= 3.
    """
    found, n = list[int](), FIRST_LOOK
    while n < maximum:
        found.append(n)
        n += max(1, n // 4)
    return (*found, maximum)


def quantile(variants: int) -> float:
    """Return the normal quantile of all bounds in a race of so many variants."""
    return float(np.interp(np.log(max(variants, 2)), np.log(_VARIANTS), _QUANTILES))


@dataclass(frozen=True)
class PooledSpread:
    """The spread of all pairs at the first look, which steadies that of one pair after few seeds.

    Attributes:
        variance: Typical variance of a difference, ``[races]``.
        weight: Degrees of freedom that it counts for, ``[races]``; 0 where nothing is pooled.
    """

    variance: np.ndarray
    weight: np.ndarray


def pooled_spread(variances: np.ndarray, there: np.ndarray, n: int) -> PooledSpread:
    """Fit a scaled inverse chi-squared law to the variances of pairs, by moments of their logarithms.

    Smyth 2004, "Linear models and empirical Bayes methods", section 6.2. The weight is at most
    :data:`MOST_PRIOR`, so that a variant whose spread is unlike the others' soon has its own.

    Args:
        variances: Of differences, ``[races, k, k]``.
        there: Variants that count, ``[races, k]``.
        n: Seeds behind each variance.
    """
    k = there.shape[1]
    upper = np.triu(np.ones((k, k), dtype=bool), 1)
    counts = upper & there[:, :, None] & there[:, None, :] & (variances > 0)
    number = counts.sum(axis=(1, 2))
    half = (n - 1) / 2
    logs = np.log(np.where(counts, variances, 1.0)) - special.digamma(half) + np.log(half)
    mean = np.where(counts, logs, 0.0).sum(axis=(1, 2)) / np.maximum(number, 1)
    squares = np.where(counts, (logs - mean[:, None, None]) ** 2, 0.0).sum(axis=(1, 2))
    excess = squares / np.maximum(number - 1, 1) - special.polygamma(1, half)
    few = number < _FEWEST_POOLED * (_FEWEST_POOLED - 1) / 2
    weight = 2 * _inverse_trigamma(np.maximum(excess, 1e-3))
    variance = np.exp(mean + special.digamma(weight / 2) - np.log(weight / 2))
    return PooledSpread(np.where(few, 0.0, variance), np.where(few, 0.0, np.minimum(weight, MOST_PRIOR)))


def _inverse_trigamma(values: np.ndarray) -> np.ndarray:
    """Solve ``trigamma(x) = value`` by Newton's method, as in Smyth's appendix."""
    found = 0.5 + 1 / values
    for _ in range(8):
        at = special.polygamma(1, found)
        found = found + at * (1 - at / values) / special.polygamma(2, found)
    return np.asarray(found)


@dataclass(frozen=True)
class Differences:
    """Differences of the second variant to the first, for every two.

    Attributes:
        mean: Means, ``[races, k, k]``; infinite where a seed bounds nothing.
        variance: Variances between seeds, likewise.
        count: Seeds that count, likewise, or ``[1, 1, 1]`` where all do.
        closed: Whether a seed excludes for ever that the first is shown to be as good, as ``count``.
    """

    mean: np.ndarray
    variance: np.ndarray
    count: np.ndarray
    closed: np.ndarray


def pairs_of(high: np.ndarray, low: np.ndarray | None = None) -> Differences:
    """Return the upper ends of all differences.

    Args:
        high: Upper ends of the values, ``[races, k, n]``.
        low: Lower ends, likewise, minus infinity where a run never arrives; None where they are the upper
            ends. A seed in which neither run arrives does not count.
    """
    n = high.shape[2]
    if low is None:
        mean = high.mean(axis=2)
        centred = high - mean[:, :, None]
        products = np.einsum("rin,rjn->rij", centred, centred, optimize=True) / (n - 1)
        own = np.einsum("rii->ri", products)
        variance = np.maximum(own[:, :, None] + own[:, None, :] - 2 * products, 0.0)
        # What is left of two equal columns is rounding.
        variance[variance < 1e-12 * (own[:, :, None] + own[:, None, :])] = 0.0
        everywhere = np.full((1, 1, 1), n)
        return Differences(
            mean[:, None, :] - mean[:, :, None], variance, everywhere, np.zeros((1, 1, 1), bool)
        )
    late = np.isneginf(low)
    counts = ~(late[:, :, None, :] & late[:, None, :, :])
    floor = np.where(late, 0.0, low)
    ends = np.where(counts, high[:, None, :, :] - floor[:, :, None, :], 0.0)
    closed = np.asarray((counts & late[:, :, None, :]).any(axis=3))
    count = counts.sum(axis=3)
    mean = ends.sum(axis=3) / np.maximum(count, 1)
    squares = np.where(counts, (ends - mean[..., None]) ** 2, 0.0).sum(axis=3)
    once = np.asarray(late.any(axis=2))
    bounded = once[:, :, None] | once[:, None, :]
    open_ = closed | (count < np.where(bounded, FEWEST_BOUNDED, 2))
    return Differences(np.where(open_, np.inf, mean), squares / np.maximum(count - 1, 1), count, closed)


def half_width(pairs: Differences, spread: PooledSpread, level: float, resolution: float = 0.0) -> np.ndarray:
    """Return how far a bound is from the mean of a difference, ``[races, k, k]``.

    Args:
        pairs: The differences.
        spread: That of all pairs.
        level: Normal quantile; the bound takes Student's for it.
        resolution: Smallest step of a value: rounding spreads differences by it at least.
    """
    weight, typical = spread.weight[:, None, None], spread.variance[:, None, None]
    freedom = weight + pairs.count - 1
    variance = (weight * typical + (pairs.count - 1) * pairs.variance) / np.maximum(freedom, 1)
    variance = np.maximum(variance, resolution**2 / 6)
    student = -special.stdtrit(np.maximum(freedom, 1), special.ndtr(-level))
    return np.asarray(student * np.sqrt(variance / np.maximum(pairs.count, 1)))


class Race:
    """The state of races after some looks.

    With a chance of at least 95 % no bound of a difference to the best variant is wrong at any look, if
    differences are normally distributed. Then the best is never passed, and a decided race ends with a leader
    within the margin of it. A variant that cannot be more than the margin better than the leader rests. It
    runs again, with the seeds that it lacks, when another leads of whom this is not known.

    Args:
        shape: Races and variants in each.
        margin: Half-width of practical equivalence, > 0.
        resolution: Smallest step of a value, or 0.

    Attributes:
        upper: Upper bound of the second variant's mean over the first's, ``[races, k, k]``.
        left: Who is left, ``[races, k]``.
        running: Who runs with more seeds, likewise.
        seeds: Seeds of each, likewise.
        leader: Who leads, ``[races]``.
        decided: Whether the leader is within the margin of the best, likewise.
        over: Whether more seeds are of no use: decided, no variant that is left can win, or none arrives in
            any seed, likewise.
        spread: Of all pairs at the first look.
        resolution: As given.
    """

    def __init__(self, shape: tuple[int, int], margin: float, resolution: float = 0.0) -> None:
        races, k = shape
        self._own = np.eye(k, dtype=bool)
        self._margin = margin
        self.resolution = resolution
        self.level = quantile(k)
        self.upper = np.where(self._own, 0.0, np.full((races, k, k), np.inf))
        self.left, self.running = np.ones(shape, bool), np.ones(shape, bool)
        self.seeds = np.zeros(shape, int)
        self.leader = np.zeros(races, int)
        self.decided, self.over = np.zeros(races, bool), np.zeros(races, bool)
        self.spread: PooledSpread | None = None

    def look(
        self, n: int, high: np.ndarray, low: np.ndarray | None = None, lost: np.ndarray | None = None
    ) -> None:
        """Look at the races after so many seeds.

        Args:
            n: Seeds of all that run.
            high: Upper ends of the values, ``[races, k, n]`` or longer; those of others than ``running`` and
                of ``lost`` are not used.
            low: Lower ends, as for :func:`pairs_of`.
            lost: Who lost in one of these seeds, such as a run that diverged, ``[races, k]``.
        """
        at = np.flatnonzero(~self.over)
        lost = np.zeros_like(self.left) if lost is None else lost
        ran = self.running[at] & ~lost[at]
        self.left[at] &= ~lost[at]
        self.seeds[at] = np.where(self.running[at], n, self.seeds[at])
        used = np.where(ran[:, :, None], high[at][:, :, :n], 0.0)
        below = None if low is None else np.where(ran[:, :, None], low[at][:, :, :n], 0.0)
        pairs = pairs_of(used, below)
        if self.spread is None:
            self.spread = pooled_spread(pairs.variance, ran, n)
        spread = PooledSpread(self.spread.variance[at], self.spread.weight[at])
        bound = pairs.mean + half_width(pairs, spread, self.level, self.resolution)
        both = ran[:, :, None] & ran[:, None, :] & ~self._own
        self.upper[at] = np.minimum(self.upper[at], np.where(both, bound, np.inf))
        self._pass(at, both)
        self._lead(at, ran, used, below)
        self._end(at, both & pairs.closed)
        if below is not None:  # the leader arrives most often
            self.over[at] |= np.isneginf(below[np.arange(len(at)), self.leader[at]]).all(axis=1)

    def _pass(self, at: np.ndarray, both: np.ndarray) -> None:
        """Leave out who is worse than another."""
        passed = (both & (self.upper[at] < 0)).any(axis=1)
        stays = self.left[at] & ~passed
        self.left[at] = np.where(stays.any(axis=1)[:, None], stays, self.left[at])

    def _lead(self, at: np.ndarray, ran: np.ndarray, high: np.ndarray, low: np.ndarray | None) -> None:
        """Find who arrives most often, and then has the largest mean."""
        value = high.mean(axis=2)
        late = np.zeros_like(value) if low is None else np.isneginf(low).sum(axis=2)
        can = ran & self.left[at]
        fewest = np.where(can, late, np.inf).min(axis=1)
        can &= late == fewest[:, None]
        found = np.where(can, value, -np.inf).argmax(axis=1)
        self.leader[at] = np.where(can.any(axis=1), found, self.left[at].argmax(axis=1))

    def _end(self, at: np.ndarray, closed: np.ndarray) -> None:
        """Let rest who cannot be much better than the leader, and end races in which all others do."""
        rows = np.arange(len(at))
        left, within = self.left[at], self.upper[at] <= self._margin
        unsure = left & ~within[rows, self.leader[at]]
        self.decided[at] = ~unsure.any(axis=1) & left.any(axis=1)
        possible = (within | ~closed | ~left[:, None, :]).all(axis=2) & left
        self.over[at] = self.decided[at] | ~possible.any(axis=1)
        unsure[rows, self.leader[at]] = True
        self.running[at] = unsure

    @property
    def shortfall(self) -> np.ndarray:
        """How much better than the leader the best may be, by bounds that hold at all looks, ``[races]``."""
        bounds = self.upper[np.arange(len(self.left)), self.leader]
        return np.asarray(np.where(self.left, bounds, 0.0).max(axis=1))

    @property
    def equivalent(self) -> np.ndarray:
        """Who is within the margin of every one that is left, so of the best, ``[races, k]``."""
        return ((self.upper <= self._margin) | ~self.left[:, None, :]).all(axis=2) & self.left

    def against_leader(self, high: np.ndarray, low: np.ndarray | None = None) -> np.ndarray:
        """Return the difference of everybody to the leader, with the bounds at which one is passed.

        Args:
            high: Upper ends of the values, as for :meth:`look`.
            low: Lower ends, likewise.

        Returns:
            Mean over the seeds in which both arrive, lower and upper bound, ``[3, races, k]``; of each over
            the seeds that it has. NaN and infinite where nothing is known.
        """
        assert self.spread is not None
        rows, found = np.arange(len(self.left)), np.full((3, *self.left.shape), np.nan)
        for n in np.unique(self.seeds):
            above, below = high[:, :, :n], None if low is None else low[:, :, :n]
            pairs = pairs_of(above, below)
            width = half_width(pairs, self.spread, self.level, self.resolution)
            upper = (pairs.mean + width)[rows, self.leader]
            lower = -(pairs.mean + width)[rows, :, self.leader]
            mean = pairs.mean[rows, self.leader]
            if below is not None:
                arrive = ~np.isneginf(below)
                both = arrive & arrive[rows, self.leader][:, None]
                apart = np.where(both, above - above[rows, self.leader][:, None], 0.0).sum(axis=2)
                mean = apart / np.where(both.any(axis=2), both.sum(axis=2), np.nan)
            found = np.where(self.seeds == n, np.stack([mean, lower, upper]), found)
        return found
