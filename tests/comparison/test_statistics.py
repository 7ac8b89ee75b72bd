"""Every estimator against a closed form, another library's number or a simulation of what it promises."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flsel.comparison.judging import estimates as ours
from flsel.comparison.judging.designs import FEWEST_SEEDS
from flsel.comparison.judging.power import resolvable, seeds_needed, seeds_to_reject
from flsel.comparison.judging.ranks import performance_profile, rank


def coverage(draw, mean: float, interval, repetitions: int = 2000) -> float:
    rng = np.random.default_rng(7)
    found = (interval(draw(rng)) for _ in range(repetitions))
    return float(np.mean([e.low <= mean <= e.high for e in found]))


@pytest.mark.parametrize(
    ("draw", "mean", "least"),
    [
        (lambda rng: rng.normal(size=5), 0.0, 0.93),
        (lambda rng: rng.normal(size=3), 0.0, 0.93),
        (lambda rng: rng.exponential(size=5), 1.0, 0.90),
        (lambda rng: -rng.lognormal(0, 0.6, size=5), -math.exp(0.18), 0.90),
        (lambda rng: rng.lognormal(0, 0.6, 5) - rng.exponential(size=5), math.exp(0.18) - 1.0, 0.90),
    ],
    ids=["normal", "normal-of-three", "exponential", "log-normal", "skewed-pairs"],
)
def test_shown_intervals_cover_what_they_promise(draw, mean, least):
    assert coverage(draw, mean, ours.mean_interval) >= least


def test_intervals_are_students_without_skew():
    values = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]) + 3.0
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval()
    found = ours.mean_interval(values)
    assert (found.value, found.low, found.high) == pytest.approx((3.0, low, high))


def test_skew_lengthens_the_longer_side_only():
    values = np.array([0.0, 0.1, 0.2, 0.3, 4.0])
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval()
    found = ours.mean_interval(values)
    assert found.low == pytest.approx(low)
    assert found.high > high


@given(st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=8, unique=True))
def test_p_value_is_where_the_interval_touches_zero(values):
    values = np.asarray(values)
    p = ours.mean_p_value(values)
    if np.mean(values) != 0 and 1e-6 < p < 0.999:
        touching = ours.mean_interval(values, 1 - p)
        nearest = min(abs(touching.low), abs(touching.high))
        assert nearest == pytest.approx(0.0, abs=1e-6 * (1 + touching.high - touching.low))


def test_one_value_has_no_interval_and_equal_values_have_the_sign_tests_p():
    one = ours.mean_interval([0.5])
    assert one.value == 0.5
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert ours.mean_p_value(np.array([0.1, 0.1, 0.1])) == 0.25
    assert ours.mean_p_value(np.zeros(3)) == 1.0
    assert math.isnan(ours.mean_p_value(np.array([0.1])))
    flat = ours.mean_interval([0.1, 0.1, 0.1])
    assert math.isnan(flat.low)
    assert math.isnan(flat.high)


@pytest.mark.parametrize("n", [2, 3, 5, 7])
def test_sign_flips_are_enumerated(n):
    differences = np.random.default_rng(n).normal(0.4, 1.0, n)
    means = [
        abs(np.mean(differences * signs)) for signs in itertools.product((-1, 1), repeat=n)
    ]  # fmt: skip
    expected = np.mean(np.array(means) >= abs(differences.mean()) - 1e-12)
    assert ours.sign_flip(differences) == pytest.approx(expected)


def test_flips_that_are_equal_but_for_rounding_are_ties():
    one, other = np.array([0.65, 0.73, 0.67, 0.80, 0.85]), np.array([0.89, 0.70, 0.70, 0.70, 0.71])
    assert ours.sign_flip(one - other) == 1.0  # -24 + 3 - 3 + 10 + 14 = 0; SciPy's test finds 15 / 16
    many = np.tile([-0.1, 0.2, 0.1, 0.3, -0.3, -0.2], 3)  # Flips are drawn, and every one reaches 0.
    assert ours.sign_flip(many) == 1.0


def test_five_pairs_cannot_reject_and_six_can():
    assert ours.sign_flip(np.arange(1.0, 6.0)) == 0.0625
    assert ours.sign_flip(np.arange(1.0, 7.0)) == 0.03125
    assert seeds_to_reject() == 6
    assert seeds_to_reject(3) == 7  # 2^-6 <= 0.05 / 3
    assert seeds_to_reject(4) == 8


def test_holm_by_hand():
    assert ours.holm([0.01, 0.04, 0.03, math.nan]) == pytest.approx([0.03, 0.06, 0.06, math.nan], nan_ok=True)
    assert ours.holm([0.6, 0.9]) == [1.0, 1.0]


@pytest.mark.parametrize("n", [5, 10, 20])
def test_power_is_that_of_the_test_that_decides(n):
    """So many new pairs find the difference that old ones call resolvable, four times in five."""
    rng = np.random.default_rng(3)
    old, new = rng.standard_normal((2, 2000, n))
    shifts = np.array([resolvable(sample) for sample in old])
    rejected = ours.p_values(*ours.moments(new + shifts[:, None]), n) <= 0.05
    assert rejected.mean() == pytest.approx(0.8, abs=0.03)


def test_seeds_needed_are_one_more_than_the_textbooks_number():
    # An effect of one standard deviation needs 10 pairs for a power of 0.8 (Cohen 1988, Table 2.4.1); the
    # longer side of skewed samples costs one.
    values = np.array([-1.0, 1.0]) / math.sqrt(2) + 1.0
    found = seeds_needed(values)
    assert found is not None
    assert found.value == 11
    rng = np.random.default_rng(5)
    p = ours.p_values(*ours.moments(1 + rng.standard_normal((4000, 11))), 11)
    assert 0.79 <= (p <= 0.05).mean() <= 0.86
    assert seeds_needed(values, comparisons=5).value > 11
    assert seeds_needed(np.array([1.0, -1.0])).value is None
    assert seeds_needed(np.array([1e-4, 1.0, -1.0])).value is None
    assert seeds_needed(np.array([1.0])) is None


def test_the_interval_of_seeds_needed_covers_the_truth():
    """Of effects of one standard deviation, which take ten seeds, from eight pairs."""
    rng = np.random.default_rng(8)
    found = [seeds_needed(1.0 + rng.standard_normal(8)) for _ in range(150)]
    covered = [f.low <= 10 and (f.high is None or f.high >= 10) for f in found]
    assert np.mean(covered) >= 0.9


def test_corrected_intervals_hold_together_and_single_ones_do_not():
    rng = np.random.default_rng(9)
    draws = rng.standard_normal((1500, 5, 6))
    missed = {level: np.array([
        any(not found.low <= 0 <= found.high for found in (ours.mean_interval(x, level) for x in family))
        for family in draws
    ]).mean() for level in (0.95, 0.99)}  # fmt: skip
    assert missed[0.99] < 0.065
    assert missed[0.95] > 0.12


def test_probability_of_improvement_counts_ties_half():
    found = ours.improvement(np.array([1.0, 1.0, 0.0, -1.0]))
    assert found.value == pytest.approx(2.5 / 4)
    assert found.low == pytest.approx(stats.beta.ppf(0.025, 2, 3))
    assert found.high == pytest.approx(stats.beta.ppf(0.975, 4, 1))


def test_welch_is_scipys():
    one, other = np.random.default_rng(0).normal(size=(2, 6))
    found, p = ours.welch_interval(one, other)
    expected = stats.ttest_ind(one, other, equal_var=False)
    assert p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_unpaired_runs_that_do_not_vary_have_no_spread_and_no_test():
    found, p = ours.welch_interval(np.full(3, 0.75), np.full(2, 0.5))
    assert (found.value, found.n) == (0.25, 2)
    assert math.isnan(found.low)
    assert math.isnan(p)


def test_what_differs_by_rounding_is_a_tie():
    differences = ours.untied([0.1 + 0.2, 0.3, 0.7], [0.3, 0.1 + 0.2, 0.7])
    assert ours.improvement(differences).value == 0.5
    found, p = ours.compare_pairs(differences)
    assert (found.value, p, ours.sign_flip(differences)) == (0.0, 1.0, 1.0)


def test_interquartile_mean_drops_a_quarter_at_each_end():
    assert ours.interquartile_mean([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -50.0]) == pytest.approx(3.5)
    assert ours.interquartile_mean([1.0, 5.0]) == 3.0


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any))
def test_gini_is_the_mean_absolute_difference(counts):
    pairs = np.abs(np.subtract.outer(counts, counts)).mean()
    assert ours.gini(counts) == pytest.approx(pairs / (2 * np.mean(counts)))


def test_ranks_are_tested_by_exchanges_within_seeds():
    """Four variants in the same order under each of six seeds: enumerated by hand for two of them."""
    scores = np.broadcast_to(np.array([4.0, 3.0, 2.0, 1.0]), (6, 3, 4))
    found = rank(scores)
    assert found.mean_ranks == pytest.approx([1, 2, 3, 4])
    assert found.p < 0.001
    # Nemenyi's normal approximation for six blocks is 1.91.
    assert found.critical_difference == pytest.approx(1.91, abs=0.15)
    two = rank(scores[:, :, :2])
    assert two.p == pytest.approx(2 * 2.0**-6, abs=0.006)
    assert two.can_decide
    assert not rank(scores[:5, :, :2]).can_decide, "2 of 32 exchanges are 6 %"
    assert not rank(scores[:1]).can_decide


def test_noise_that_scenarios_share_makes_no_ranking_significant():
    """Nine scenarios whose results are mostly the same noise under one seed, and no variant differs."""
    rng = np.random.default_rng(4)
    best = 0
    for _ in range(120):
        common = rng.standard_normal((5, 1, 6))
        found = rank(common + 0.5 * rng.standard_normal((5, 9, 6)))
        first, second = np.sort(found.mean_ranks)[:2]
        best += second - first > found.critical_difference or found.p <= 0.05
    assert best / 120 < 0.05 + 0.05


def test_ties_everywhere_decide_nothing():
    found = rank(np.ones((5, 3, 4)))
    assert found.p == 1.0
    assert found.mean_ranks.tolist() == [2.5] * 4
    assert not found.can_decide


def test_performance_profile_is_a_share():
    profile = performance_profile(np.array([0.1, 0.5, 0.5, 0.9]), np.array([0.0, 0.5, 0.9]))
    assert profile.tolist() == [1.0, 0.25, 0.0]


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_differences_that_are_nearly_the_same_need_the_fewest_seeds_that_carry_a_claim(n: int, spread: float):
    assert seeds_needed(1.0 + spread * np.linspace(-1, 1, n)).value == FEWEST_SEEDS


def test_seeds_needed_is_symmetric_and_falls_with_the_effect():
    noise = np.random.default_rng(0).normal(size=6)
    needed = [seeds_needed(noise - noise.mean() + effect).value for effect in (0.5, 1.0, 2.0, 4.0)]
    assert needed == sorted(needed, reverse=True)
    assert seeds_needed(-noise) == seeds_needed(noise)


@pytest.mark.parametrize(
    ("law", "most"),
    [
        (lambda rng, shape: rng.standard_normal(shape), 0.05),
        (lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3), 0.05),
        (lambda rng, shape: np.round(rng.standard_normal(shape) * 3) / 3, 0.06),
        # The report says that differences are skewed: no t method holds on them.
        (lambda rng, shape: rng.lognormal(0.0, 0.6, shape), 0.16),
    ],
    ids=["normal", "heavy", "discrete", "skewed"],
)
def test_any_false_claim_of_a_fixed_design_is_rare(law, most):
    """Nothing differs: four variants share a baseline, and Holm corrects their claims."""
    values = law(np.random.default_rng(0), (400, 5, 5))
    false = [
        min(ours.holm([ours.mean_p_value(ours.untied(x, family[-1])) for x in family[:-1]])) <= 0.05
        for family in values
    ]
    # Two standard errors of 5 % in 400 comparisons are 2.2 points.
    assert np.mean(false) < most + 0.022


def test_a_significant_claim_has_the_right_direction():
    rng = np.random.default_rng(3)
    pairs = 0.5 + rng.standard_normal((2000, 5))
    wrong = [x.mean() < 0 and ours.mean_p_value(x) <= 0.05 for x in pairs]
    assert np.mean(wrong) < 0.004
