"""Cost to a target where some runs never arrive: censored times, never dropped and never averaged away."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from flsel.comparison.judging.designs import LEVEL
from flsel.comparison.judging.estimates import Estimate, student_interval
from flsel.metrics import Better, first_hit


@dataclass(frozen=True)
class TargetTime:
    """When a run reached the target.

    Attributes:
        at: Rounds, bytes, passes or seconds at the first evaluation that did; for a run that did not, where
            it ended.
        reached: Whether it did.
    """

    at: float
    reached: bool


@dataclass(frozen=True)
class TargetTimes:
    """Several runs' way to one target.

    Attributes:
        median: Median with its interval, the mean of the two middle values of an even number of runs;
            infinite where one of these does not arrive.
        restricted_mean: Mean up to the horizon, runs that never arrive counted as the horizon.
        horizon: Where the first of the runs that did not arrive ended, or the last arrival.
        arrivals: By seed.
    """

    median: Estimate
    restricted_mean: Estimate
    horizon: float
    arrivals: Mapping[int, TargetTime]

    @property
    def reached(self) -> int:
        """How many arrived."""
        return sum(arrival.reached for arrival in self.arrivals.values())

    @property
    def n(self) -> int:
        """How many runs there are."""
        return len(self.arrivals)


def first_at(
    target: float,
    costs: Sequence[float] | np.ndarray,
    values: Sequence[float] | np.ndarray,
    window: int = 1,
    better: Better = "max",
) -> TargetTime:
    """Find where the running mean of some evaluations first reaches a target.

    Args:
        target: The value to reach.
        costs: What was spent up to each evaluation, ascending, ``[n]`` with n >= 1.
        values: The evaluations ``[n]``; NaN reaches nothing.
        window: Evaluations in the mean, >= 1.
        better: Whether the target is reached from below, or from above where less is better.
    """
    hit = first_hit(values, target, window=window, better=better)
    return TargetTime(float(costs[-1 if hit is None else hit]), hit is not None)


FEWEST_FOR_MEDIAN = 6
"""Runs below which a median has no interval: with three it covers 75 %, with five 94 %."""


def survival(arrivals: Sequence[TargetTime]) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of runs that have not arrived: costs ``[m]``, and shares ``[m]`` of all runs."""
    curve = stats.ecdf(_censored(arrivals)).sf
    return np.concatenate([[0.0], curve.quantiles]), np.concatenate([[1.0], curve.probabilities])


def summarise(by_seed: Mapping[int, TargetTime], level: float = LEVEL) -> TargetTimes:
    """Summarise when runs of one variant reach the target.

    A run that does not arrive in its rounds is later than every run that does, wherever it ended. Kaplan and
    Meier's estimate would take its end for independent of when it would have arrived, but a run that spends
    little a round ends at small totals of bytes or seconds. Where all runs end at the same total, as in
    rounds, both are the same.

    The median's interval is where the log-log band of the survival curve crosses one half (Brookmeyer and
    Crowley 1982). The restricted mean is that of the costs up to the horizon, before which no run is
    censored, with Student's t; its ends stay within 0 and the horizon.

    Args:
        by_seed: When each run arrived, at least one.
        level: Confidence level of the intervals.
    """
    arrivals = list(by_seed.values())
    ends = [arrival.at for arrival in arrivals if not arrival.reached]
    horizon = min(ends) if ends else max(arrival.at for arrival in arrivals)
    return TargetTimes(_median(arrivals, level), _restricted_mean(arrivals, horizon, level), horizon, by_seed)


def _censored(arrivals: Sequence[TargetTime]) -> stats.CensoredData:
    end = max(arrival.at for arrival in arrivals)
    return stats.CensoredData(
        uncensored=[arrival.at for arrival in arrivals if arrival.reached],
        right=[end for arrival in arrivals if not arrival.reached],
    )


def _median(arrivals: Sequence[TargetTime], level: float) -> Estimate:
    n = len(arrivals)
    if not any(arrival.reached for arrival in arrivals):
        return Estimate(math.inf, math.nan, math.nan, n)
    curve = stats.ecdf(_censored(arrivals)).sf
    # A run that does not arrive is later than all others.
    middle = float(np.median([arrival.at if arrival.reached else math.inf for arrival in arrivals]))
    if n < FEWEST_FOR_MEDIAN:
        return Estimate(middle, math.nan, math.nan, n)
    with warnings.catch_warnings():
        # The band has no value while no run, or once every run, has reached the target.
        warnings.simplefilter("ignore", RuntimeWarning)
        band = curve.confidence_interval(level, method="log-log")
    # Where all have arrived the band is undefined, and nothing is above one half.
    low = np.where(np.isnan(band.low.probabilities), curve.probabilities, band.low.probabilities)
    high = np.where(np.isnan(band.high.probabilities), curve.probabilities, band.high.probabilities)
    at = curve.quantiles
    return Estimate(middle, _half(at, low), _half(at, high), n)


def _half(at: np.ndarray, probabilities: np.ndarray) -> float:
    below = np.flatnonzero(probabilities <= 0.5)
    return float(at[below[0]]) if len(below) else math.inf


def _restricted_mean(arrivals: Sequence[TargetTime], horizon: float, level: float) -> Estimate:
    found = student_interval(
        np.array([min(a.at, horizon) if a.reached else horizon for a in arrivals]), level
    )
    return found.map(lambda end: np.clip(end, 0.0, horizon))
