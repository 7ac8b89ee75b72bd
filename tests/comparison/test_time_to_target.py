"""Cost to a target with runs that never arrive."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from flsel.comparison.judging.estimates import mean_interval
from flsel.comparison.judging.measures import chosen_target
from flsel.comparison.judging.time_to_target import TargetTime, TargetTimes, first_at, summarise, survival
from flsel.comparison.run_table import Run


def arrived(*at: float) -> list[TargetTime]:
    return [TargetTime(when, True) for when in at]


def never(*at: float) -> list[TargetTime]:
    return [TargetTime(when, False) for when in at]


def summary(arrivals: list[TargetTime]) -> TargetTimes:
    return summarise(dict(enumerate(arrivals)))


def test_first_hit_and_running_mean_differ():
    costs, values = [0, 10, 20, 30, 40], [0.1, 0.7, 0.2, 0.7, 0.8]
    assert first_at(0.7, costs, values) == TargetTime(10.0, True)
    assert first_at(0.7, costs, values, window=2) == TargetTime(40.0, True)
    assert first_at(0.9, costs, values) == TargetTime(40.0, False)
    assert first_at(0.1, costs, values, window=9) == TargetTime(40.0, False)
    assert first_at(0.5, costs, [math.nan, math.nan, 0.6, 0.6, 0.6], window=2) == TargetTime(30.0, True)


def test_a_mean_of_evaluations_at_the_target_reaches_it():
    """Shares of 100 examples, whose means are rounded to either side of what they are."""
    for share in range(1, 101):
        for window in (1, 2, 3, 10):
            assert first_at(share / 100, range(12), [share / 100] * 12, window).at == window - 1
            assert not first_at((share + 1) / 100, range(12), [share / 100] * 12, window).reached
        run = cast("Run", SimpleNamespace(columns={"test/accuracy": np.full(12, share / 100)}))
        target = chosen_target([run], last=10)
        assert target is not None
        assert target.value == share / 100


def test_a_run_that_never_arrives_is_later_than_all_wherever_it_ended():
    """Kaplan and Meier's median is 58: a run that ends at few bytes does not leave it early."""
    data = arrived(50, 52, 58, 60, 62) + never(20, 30)
    at, share = survival(data)
    steps = dict(zip(at.tolist(), share.tolist(), strict=True))
    assert steps[50.0] == pytest.approx(6 / 7)
    assert steps[62.0] == pytest.approx(2 / 7), "as many as did not reach the target"
    found = summary(data).median
    assert found.value == 60.0
    assert found.high == math.inf
    assert summary(arrived(10) + never(1, 1)).median.value == math.inf


def test_where_all_runs_end_together_the_curve_is_that_of_kaplan_and_meier():
    """Remission under placebo, Freireich et al. 1963, cut at 15 weeks: the median is 8 weeks."""
    weeks = (1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12)
    found = summary(arrived(*weeks) + never(15, 15, 15, 15)).median
    assert (found.value, found.low, found.high) == (8.0, 4.0, 11.0)


def test_everybody_arrives():
    found = summary(arrived(10, 20, 30, 40, 50))
    assert found.median.value == 30.0
    assert math.isnan(found.median.low), "five runs have no interval of their median"
    assert 10.0 <= summary(arrived(10, 20, 30, 40, 50, 60)).median.low <= 20.0
    assert summary(arrived(10, 20, 30, 40, 50, 60)).median.high == 60.0
    assert found.restricted_mean.value == pytest.approx(30.0)
    assert (found.reached, found.n, found.horizon) == (5, 5, 50.0)


def test_restricted_mean_is_the_mean_of_what_is_cut_at_the_horizon():
    data = arrived(10, 20, 35) + never(100, 100)
    found = summary(data)
    cut = np.array([10, 20, 35, 100, 100])
    expected = mean_interval(cut)
    assert found.restricted_mean.value == pytest.approx(cut.mean())
    plain = cut.std(ddof=1) / math.sqrt(5) * 2.7764
    assert found.restricted_mean.low == pytest.approx(max(0.0, cut.mean() - plain), abs=0.01)
    assert found.restricted_mean.high == 100.0 < expected.high


@pytest.mark.parametrize(
    ("data", "median"),
    [
        (arrived(10, 20, 40, 50), 30.0),
        (arrived(10, 20, 40, 50, 60, 70), 45.0),
        (arrived(10, 20, 40) + never(5), 30.0),
        (arrived(10, 20) + never(5, 5), math.inf),
    ],
)
def test_medians_of_even_numbers_are_the_mean_of_the_two_in_the_middle(data, median):
    assert summary(data).median.value == median


def test_nobody_arrives():
    found = summary(never(100, 100, 100))
    assert found.median.value == math.inf
    assert found.restricted_mean.value == 100.0
    assert (found.reached, found.horizon) == (0, 100.0)


def test_one_run_has_no_interval():
    found = summary(arrived(12))
    assert (found.median.value, found.restricted_mean.value) == (12.0, 12.0)
    assert math.isnan(found.median.low)
    assert math.isnan(found.restricted_mean.high)


def test_intervals_hold_with_six_runs_some_of_them_censored():
    rng = np.random.default_rng(5)
    horizon, repetitions = 150.0, 600
    # Log-normal arrivals: the median is 100, and 21 % never arrive.
    truth = np.minimum(rng.lognormal(math.log(100), 0.5, 400_000), horizon).mean()
    hits = np.zeros(2)
    for _ in range(repetitions):
        times = rng.lognormal(math.log(100), 0.5, 6)
        found = summary(
            [TargetTime(float(t), True) if t < horizon else TargetTime(horizon, False) for t in times]
        )
        hits += [
            found.median.low <= 100 <= found.median.high,
            found.restricted_mean.low <= truth <= found.restricted_mean.high,
        ]
    assert (hits / repetitions >= 0.90).all(), hits / repetitions
