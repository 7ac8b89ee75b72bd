"""Numbers from few seeds: intervals that hold, tests that say when they cannot reject, and what is missing.

Notation: ``n`` is the number of seeds or of pairs; differences are variant minus baseline of the same seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from flsel.comparison.judging.designs import LEVEL, Design

# Above this many pairs the sign-flip test draws its flips instead of enumerating them.
_ENUMERATED = 16
_DRAWN = 20_000


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval.

    Attributes:
        value: The mean; NaN of nothing.
        low: Lower end; NaN where no spread is known: of one value, and of values that are all one number.
        high: Upper end, likewise.
        n: Number of values.
    """

    value: float
    low: float
    high: float
    n: int

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Return the estimate on another scale, by an increasing function."""
        value, low, high = (float(function(x)) for x in (self.value, self.low, self.high))
        return Estimate(value, low, high, self.n)


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the middle half; with fewer than four values, of all (Agarwal et al. 2021)."""
    return float(stats.trim_mean(np.asarray(values, dtype=float), 0.25)) if len(values) else math.nan


def mean_interval(
    values: Sequence[float] | np.ndarray, level: float = LEVEL, bound: float | None = None
) -> Estimate:
    """Estimate a mean by Student's t, with the longer side that Johnson's correction asks for under skew.

    The plain t interval of five values covers 95 % for normal data and 87 % for log-normal ones (sigma 0.8).
    On the side of the skew it is lengthened by s / sqrt(n) * |g| (1 + 2 t^2) / (6 sqrt(n)), where g is the
    sample's skewness, and never more than doubled: 96 % and 90 % (Johnson 1978; the other side, which the
    correction would shorten, stays).

    Args:
        values: ``[n]``, finite.
        level: Confidence level in (0, 1).
        bound: A boundary in the place of Student's quantile; NaN gives no interval.
    """
    values = np.asarray(values, dtype=float)
    n = len(values)
    if n < 2 or flat(values):
        return Estimate(float(values.mean()) if n else math.nan, math.nan, math.nan, n)
    found = moments(values[None])
    low, high = interval(*found, n, float(stats.t.ppf((1 + level) / 2, n - 1)) if bound is None else bound)
    return Estimate(float(found[0][0]), float(low[0]), float(high[0]), n)


def student_interval(values: np.ndarray, level: float = LEVEL) -> Estimate:
    """Estimate a mean by Student's t alone; one value has no interval."""
    n, mean = len(values), float(values.mean())
    if n < 2:
        return Estimate(mean, math.nan, math.nan, n)
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * standard_error(values)
    return Estimate(mean, mean - half, mean + half, n)


def moments(x: np.ndarray, resolution: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, standard error and skewness of the rows, each ``[R]``; an infinite mean has neither.

    Args:
        x: ``[R, n]`` with n >= 2.
        resolution: Resolution of one value: the spread is at least that of its rounding.
    """
    finite = np.isfinite(x).all(axis=1)
    known, n = x[finite], x.shape[1]
    mean, error, skew = x.mean(axis=1), np.zeros(len(x)), np.zeros(len(x))
    if len(known):
        varied = ~even(known)
        sd, skewed = np.where(varied, known.std(axis=1, ddof=1), 0.0), np.zeros(len(known))
        if n > 2:
            away = known[varied] - known[varied].mean(axis=1, keepdims=True)
            squares = away**2
            biased = (squares * away).mean(axis=1) / squares.mean(axis=1) ** 1.5
            skewed[varied] = biased * math.sqrt(n * (n - 1)) / (n - 2)
        error[finite] = np.maximum(sd, resolution / math.sqrt(6)) / math.sqrt(n)
        skew[finite] = skewed
    return mean, error, skew


def interval(
    mean: np.ndarray, error: np.ndarray, skew: np.ndarray, n: int, bound: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the interval of a mean, longer toward the heavier tail (Johnson 1978).

    Args:
        mean: Means ``[R]``.
        error: Standard errors ``[R]``.
        skew: Sample skewness ``[R]``.
        n: Values in each mean.
        bound: Student's quantile, or a boundary in its place.
    """
    longer = np.minimum(bound, np.abs(skew) * (1 + 2 * bound**2) / (6 * math.sqrt(n)))
    return mean - error * (bound + longer * (skew < 0)), mean + error * (bound + longer * (skew > 0))


def p_values(mean: np.ndarray, error: np.ndarray, skew: np.ndarray, n: int) -> np.ndarray:
    """Return the two-sided levels ``[R]`` at which :func:`interval` would just exclude zero.

    Where nothing varies it is the p-value of the exact sign test, 2^(1 - n), or 1 if all values are zero. An
    infinite mean has 1.
    """
    known = (error > 0) & np.isfinite(mean)
    reach = np.abs(mean, where=known, out=np.zeros(len(mean))) / np.where(known, error, 1.0)
    # A skew away from zero lengthens the far side only. The lengthening at most doubles the interval.
    c = np.where(mean * skew < 0, np.abs(skew), 0.0) / (6 * math.sqrt(n))
    root = np.sqrt(np.maximum(0.0, 1 + 8 * c * (reach - c)))
    t = np.where(c > 0, np.maximum(reach / 2, (root - 1) / (4 * np.where(c > 0, c, 1.0))), reach)
    constant = np.where(np.isfinite(mean) & (mean != 0), 2.0 ** (1 - n), 1.0)
    return np.asarray(np.where(known, 2 * stats.t.sf(t, n - 1), constant))


def welch_interval(ours: np.ndarray, theirs: np.ndarray, level: float = LEVEL) -> tuple[Estimate, float]:
    """Estimate the difference of two means whose runs are not paired (Welch), with its p-value."""
    difference = float(ours.mean() - theirs.mean())
    n = min(len(ours), len(theirs))
    if n < 2:
        return Estimate(difference, math.nan, math.nan, n), math.nan
    if flat(ours) and flat(theirs):
        return Estimate(difference, math.nan, math.nan, n), math.nan
    with warnings.catch_warnings():
        # One of the two may not vary at all, which SciPy warns of.
        warnings.filterwarnings("ignore", message="Precision loss", category=RuntimeWarning)
        found = stats.ttest_ind(ours, theirs, equal_var=False)
        low, high = found.confidence_interval(level)
    return Estimate(difference, float(low), float(high), n), float(found.pvalue)


def compare_pairs(
    differences: np.ndarray, design: Design | None = None, level: float = LEVEL
) -> tuple[Estimate, float]:
    """Return the mean of the differences of pairs with its interval, and the interval's p-value.

    Args:
        differences: ``[n]``, finite; of logarithms, where a ratio is asked for.
        design: The rules of a comparison with several looks. Then the interval holds at all looks together,
            there is none where n is no look, and there is no p-value of it. None is one look.
        level: Confidence level of the interval of one look.
    """
    if design is None:
        return mean_interval(differences, level), mean_p_value(differences)
    return mean_interval(differences, bound=design.outer.get(len(differences), math.nan)), math.nan


def improvement(values: np.ndarray) -> Estimate:
    """Return the share of pairs in which the variant's value is larger, ties counted half.

    The ends are Clopper and Pearson's, at 95 %.

    Args:
        values: Differences of the pairs ``[n]``.
    """
    n, wins, ties = len(values), int((values > 0).sum()), int((values == 0).sum())
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    tail, most = (1 - LEVEL) / 2, wins + ties
    low = float(stats.beta.ppf(tail, wins, n - wins + 1)) if wins else 0.0
    high = float(stats.beta.ppf(1 - tail, most + 1, n - most)) if most < n else 1.0
    return Estimate((wins + ties / 2) / n, low, high, n)


def mean_p_value(values: np.ndarray) -> float:
    """Return the level at which :func:`mean_interval` would just exclude zero; NaN of one value."""
    return float(p_values(*moments(values[None]), len(values))[0]) if len(values) > 1 else math.nan


def sign_flip(differences: np.ndarray) -> float:
    """Return the p-value of the sign-flip test of mean zero, two-sided.

    Under the hypothesis that variant and baseline are exchangeable in every pair, each sign is a coin's. All
    2^n are enumerated up to 16 pairs; beyond, 20,000 are drawn from a fixed seed.
    """
    n = len(differences)
    if n == 0:
        return math.nan
    enumerated = n <= _ENUMERATED
    # A flip of all signs changes no absolute value, so that the first one stays.
    drawn = np.random.default_rng(0)
    flips = np.arange(2 ** (n - 1))[:, None] >> np.arange(n) if enumerated else (
        drawn.integers(0, 2, (_DRAWN, n), dtype=np.int8)
    )  # fmt: skip
    sums = np.abs((1 - 2 * (flips & 1)) @ differences)
    # Accuracies are shares of whole examples: sums that differ by no more than rounding are ties.
    reached = sums >= abs(differences.sum()) - 1e-9 * np.abs(differences).max()
    return float(reached.mean() if enumerated else (reached.sum() + 1) / (_DRAWN + 1))


def holm(values: Sequence[float], size: int = 0) -> list[float]:
    """Correct p-values for their number, step down (Holm 1979); NaN ones count for nothing and stay.

    Args:
        values: The p-values.
        size: Number of comparisons, if it is larger than that of the p-values.
    """
    adjusted = [math.nan] * len(values)
    order = sorted((p, at) for at, p in enumerate(values) if not math.isnan(p))
    largest, size = 0.0, max(size, len(order))
    for rank, (p, at) in enumerate(order):
        largest = max(largest, min(1.0, (size - rank) * p))
        adjusted[at] = largest
    return adjusted


def gini(counts: Sequence[float] | np.ndarray) -> float:
    """Return the Gini coefficient of how often clients took part: 0 if all did equally often.

    Mean absolute difference of two clients over twice the mean; NaN if no client took part.
    """
    ordered = np.sort(np.asarray(counts, dtype=float))
    n, total = len(ordered), ordered.sum()
    if n == 0 or total == 0:
        return math.nan
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * total))


def untied(ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the differences; means of the same evaluations in another order are a tie."""
    one, other = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    tied = np.abs(one - other) <= 1e-12 * np.maximum(np.abs(one), np.abs(other))
    return np.where(tied, 0.0, one - other)


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of the mean of two values or more; 0 where they do not vary."""
    return 0.0 if flat(values) else float(np.std(values, ddof=1) / math.sqrt(len(values)))


def flat(values: np.ndarray) -> bool:
    """Tell whether values differ by no more than rounding."""
    return bool(even(np.asarray(values)[None])[0])


def even(x: np.ndarray) -> np.ndarray:
    """Tell of the rows ``[R, n]`` whether their values differ by no more than rounding; no infinite ones."""
    low, high = x.min(axis=1), x.max(axis=1)
    size = np.maximum(-low, high)
    with np.errstate(invalid="ignore"):
        return np.asarray((high - low <= 1e-12 * size) & np.isfinite(size))
