"""Numbers from few seeds: intervals that hold, tests that say when they cannot reject, and what is missing.

Notation: ``n`` is the number of seeds or of pairs; differences are variant minus baseline of the same seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, stats

from flsel.comparison.judging.decisions import interval
from flsel.comparison.judging.designs import Design

LEVEL = 0.95
FEWEST_SEEDS = 5
"""Pairs below which no difference is called significant: with fewer, coverage rests on normality alone."""
# Above this many pairs the sign-flip test draws its flips instead of enumerating them.
_ENUMERATED = 16
_DRAWN = 20_000


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval.

    Attributes:
        value: The mean; NaN of nothing.
        low: Lower end; NaN where ``n`` is below 2, as one value says nothing about the spread.
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


@dataclass(frozen=True)
class Paired:
    """A variant against the baseline, seed by seed.

    Attributes:
        difference: Mean difference with its interval; of logarithms, where ratios are compared.
        p: Two-sided p-value of the interval: the level at which it would just exclude zero. Where all values
            are the same number, that of the exact sign-flip test; 1 where all are zero.
        p_exact: Two-sided p-value of the exact sign-flip test.
        p_floor: The smallest value that ``p_exact`` can have with so many pairs, 2^(1 - n).
        improvement: Share of pairs in which the variant's value is larger, ties counted half, with the exact
            binomial interval.
        values: The differences.
    """

    difference: Estimate
    p: float
    p_exact: float
    p_floor: float
    improvement: Estimate
    values: tuple[float, ...]


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the middle half; with fewer than four values, of all (Agarwal et al. 2021)."""
    return float(stats.trim_mean(np.asarray(values, dtype=float), 0.25)) if len(values) else math.nan


def mean_interval(values: Sequence[float] | np.ndarray, level: float = LEVEL) -> Estimate:
    """Estimate a mean by Student's t, with the longer side that Johnson's correction asks for under skew.

    The plain t interval of five values covers 95 % for normal data and 87 % for log-normal ones (sigma 0.8).
    On the side of the skew it is lengthened by s / sqrt(n) * |g| (1 + 2 t^2) / (6 sqrt(n)), where g is the
    sample's skewness, and never more than doubled: 96 % and 90 % (Johnson 1978; the other side, which the
    correction would shorten, stays).

    Args:
        values: ``[n]``, finite.
        level: Confidence level in (0, 1).
    """
    values = np.asarray(values, dtype=float)
    n = len(values)
    mean = float(values.mean()) if n else math.nan
    if n < 2:
        return Estimate(mean, math.nan, math.nan, n)
    error, skew = standard_error(values), _skewness(values)
    t = float(stats.t.ppf((1 + level) / 2, n - 1))
    longer = error * _lengthening(t, abs(skew), n)
    low, high = mean - error * t, mean + error * t
    return Estimate(mean, low - longer if skew < 0 else low, high + longer if skew > 0 else high, n)


def possible(found: Estimate, limit: float) -> Estimate:
    """Cut an interval to what a difference can be, within plus and minus a limit."""
    low, high = (float(np.clip(end, -limit, limit)) for end in (found.low, found.high))
    return replace(found, low=low, high=high)


def welch_interval(ours: np.ndarray, theirs: np.ndarray) -> tuple[Estimate, float]:
    """Estimate the difference of two means whose runs are not paired (Welch), with its p-value."""
    difference = float(ours.mean() - theirs.mean())
    n = min(len(ours), len(theirs))
    if n < 2:
        return Estimate(difference, math.nan, math.nan, n), math.nan
    if flat(ours) and flat(theirs):
        return Estimate(difference, difference, difference, n), math.nan
    with warnings.catch_warnings():
        # One of the two may not vary at all, which SciPy warns of.
        warnings.filterwarnings("ignore", message="Precision loss", category=RuntimeWarning)
        found = stats.ttest_ind(ours, theirs, equal_var=False)
        low, high = found.confidence_interval(LEVEL)
    return Estimate(difference, float(low), float(high), n), float(found.pvalue)


def compare_pairs(ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray) -> Paired:
    """Compare a variant with the baseline, seed by seed.

    Args:
        ours: The variant's values ``[n]``, finite; logarithms, where a ratio is asked for.
        theirs: The baseline's under the same seeds.
    """
    differences = untied(ours, theirs)
    n = len(differences)
    return Paired(
        difference=mean_interval(differences),
        p=mean_p_value(differences),
        p_exact=sign_flip(differences),
        p_floor=2.0 ** (1 - n) if n else math.nan,
        improvement=_improvement(differences),
        values=tuple(differences.tolist()),
    )


def compare_at_look(
    ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray, design: Design
) -> Paired:
    """Compare a variant with the baseline at a look of a sequential design, by a repeated interval.

    There are no p-values: the interval holds at all looks together.

    Args:
        ours: The variant's values ``[n]``, finite; logarithms, where a ratio is asked for.
        theirs: The baseline's under the same seeds.
        design: The rules. Where n is none of its looks there is no interval.
    """
    differences = untied(ours, theirs)
    n = len(differences)
    mean = float(differences.mean()) if n else math.nan
    low, high = math.nan, math.nan
    if n in design.outer:
        error, skew = np.array([standard_error(differences)]), np.array([_skewness(differences)])
        ends = interval(np.array([mean]), error, skew, n, design.outer[n])
        low, high = (float(end[0]) for end in ends)
    nothing = math.nan
    improvement, values = _improvement(differences), tuple(differences.tolist())
    return Paired(Estimate(mean, low, high, n), nothing, nothing, nothing, improvement, values)


def mean_p_value(values: np.ndarray) -> float:
    """Return the level at which :func:`mean_interval` would just exclude zero.

    Where nothing varies it is the p-value of the exact sign test, 2^(1 - n), or 1 if all values are zero; NaN
    of one value.
    """
    n = len(values)
    if n < 2:
        return math.nan
    if standard_error(values) == 0:
        return 2.0 ** (1 - n) if values[0] else 1.0
    mean, error, skew = float(values.mean()), standard_error(values), _skewness(values)
    # A skew away from zero lengthens the far side only.
    towards_zero = abs(skew) if mean * skew < 0 else 0.0
    reach = abs(mean) / error
    t = (
        float(optimize.brentq(lambda t: t + _lengthening(t, towards_zero, n) - reach, 0.0, reach + 1.0))
        if (_lengthening(0.0, towards_zero, n) < reach)
        else 0.0
    )
    return float(2 * stats.t.sf(t, n - 1))


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
    flips = np.arange(2 ** (n - 1))[:, None] >> np.arange(n) if enumerated else _drawn_flips(n)
    sums = np.abs((1 - 2 * (flips & 1)) @ differences)
    # Accuracies are shares of whole examples: sums that differ by no more than rounding are ties.
    reached = sums >= abs(differences.sum()) - 1e-9 * np.abs(differences).max()
    return float(reached.mean() if enumerated else (reached.sum() + 1) / (_DRAWN + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number, step down (Holm 1979); NaN ones count for nothing and stay."""
    adjusted = [math.nan] * len(p_values)
    order = sorted((p, at) for at, p in enumerate(p_values) if not math.isnan(p))
    largest = 0.0
    for rank, (p, at) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
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


def _drawn_flips(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (_DRAWN, n), dtype=np.int8)


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
    return bool(np.ptp(values) <= 1e-12 * np.max(np.abs(values)))


def _skewness(values: np.ndarray) -> float:
    if len(values) < 3 or flat(values):
        return 0.0
    return float(stats.skew(values, bias=False))


def _lengthening(t: float, skew: float, n: int) -> float:
    return min(t, skew * (1 + 2 * t * t) / (6 * math.sqrt(n)))


def _improvement(differences: np.ndarray) -> Estimate:
    n, wins, ties = len(differences), int((differences > 0).sum()), int((differences == 0).sum())
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    low = stats.binomtest(wins, n).proportion_ci(LEVEL).low
    high = stats.binomtest(wins + ties, n).proportion_ci(LEVEL).high
    return Estimate((wins + ties / 2) / n, float(low), float(high), n)
