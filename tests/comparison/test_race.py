"""The race's statistics: bounds, who leaves, who rests, and how often the choice is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flsel.choosing.race import Differences, Race, half_width, looks, pairs_of, pooled_spread, quantile


def run(values: np.ndarray, margin: float, low: np.ndarray | None = None) -> Race:
    race = Race(values.shape[:2], margin)
    for n in looks(values.shape[2]):
        race.look(n, values, low)
        if race.over.all():
            break
    return race


def test_looks_grow_by_a_quarter_and_end_at_the_maximum():
    assert looks(40) == (3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 40)
    assert looks(3) == (3,)
    assert looks(6) == (3, 4, 5, 6)


def test_the_quantile_grows_with_the_number_of_variants():
    found = [quantile(k) for k in (2, 3, 5, 10, 23, 60, 200)]
    assert found == sorted(found)
    assert quantile(200) == quantile(80)


def test_a_bound_is_students_t_of_the_differences():
    values = np.random.default_rng(0).normal(size=(1, 2, 7))
    pairs = pairs_of(values)
    differences = values[0, 1] - values[0, 0]
    assert pairs.mean[0, 0, 1] == pytest.approx(differences.mean())
    assert pairs.variance[0, 0, 1] == pytest.approx(differences.var(ddof=1))
    spread = pooled_spread(pairs.variance, np.ones((1, 2), bool), 7)
    assert spread.weight[0] == 0  # two variants have nothing to pool
    width = half_width(pairs, spread, 2.5)[0, 0, 1]
    student = stats.t.isf(stats.norm.sf(2.5), 6)
    assert width == pytest.approx(student * differences.std(ddof=1) / 7**0.5)


def test_the_pooled_spread_is_that_of_its_law():
    """Variances of a scaled inverse chi-squared law with 3 degrees of freedom, seen with 10."""
    rng, k = np.random.default_rng(1), 200
    true = 4.0 * 3 / rng.chisquare(3, (1, k, k))
    seen = true * rng.chisquare(10, (1, k, k)) / 10
    found = pooled_spread(seen, np.ones((1, k), bool), 11)
    assert found.weight[0] == pytest.approx(3, rel=0.1)
    assert found.variance[0] == pytest.approx(4, rel=0.1)


def test_equal_spreads_count_for_four_seeds_at_most():
    rng, k = np.random.default_rng(2), 100
    seen = 4.0 * rng.chisquare(2, (1, k, k)) / 2
    found = pooled_spread(seen, np.ones((1, k), bool), 3)
    assert found.weight[0] == 4
    assert found.variance[0] == pytest.approx(4, rel=0.1)


def test_identical_variants_are_equivalent_at_the_first_look():
    values = np.repeat(np.random.default_rng(0).normal(size=(1, 1, 10)), 2, axis=1)
    race = run(values, 1.0)
    assert race.decided[0]
    assert race.seeds.tolist() == [[3, 3]]
    assert race.equivalent.all()


def test_a_constant_difference_is_seen_at_the_first_look():
    noise = np.random.default_rng(0).normal(size=(1, 1, 10))
    race = run(np.concatenate([noise, noise + 0.5], axis=1), 0.1)
    assert race.left.tolist() == [[False, True]]
    assert race.leader[0] == 1
    assert race.seeds.tolist() == [[3, 3]]


def test_what_all_variants_of_a_seed_share_does_not_count():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(1, 6, 12)) + np.arange(6)[:, None]
    alone, shared = run(values, 1.0), run(values + rng.normal(0, 50, (1, 1, 12)), 1.0)
    assert (alone.seeds == shared.seeds).all()
    assert np.allclose(alone.upper, shared.upper)


def test_hopeless_variants_leave_early_and_close_ones_rest():
    rng = np.random.default_rng(4)
    means = np.array([0.0, -0.2, -0.3, -20, -25, -30, -40])
    race = run(means[:, None] + rng.normal(size=(1, 7, 40)), 2.0)
    assert race.decided[0]
    assert race.seeds[0, 3:].max() <= 5
    assert not race.left[0, 3:].any()
    assert race.left[0, :3].all()


def test_races_do_not_depend_on_those_beside_them():
    rng = np.random.default_rng(5)
    values = rng.normal(size=(8, 6, 20)) + np.linspace(0, 3, 6)[:, None]
    together = run(values, 1.0)
    for at in range(len(values)):
        alone = run(values[at : at + 1], 1.0)
        assert (alone.seeds[0] == together.seeds[at]).all()
        assert alone.leader[0] == together.leader[at]
        assert (alone.left[0] == together.left[at]).all()


def test_a_resting_variant_catches_up_when_another_leads():
    """The third rests behind the first after three seeds; then the second leads, of which little is known."""
    first, third = np.zeros(5), np.array([-0.1, 0.05, -0.02, -0.05, 0.03])
    values = np.stack([first, np.array([-2.0, 1, -1, 3, 2]), third])[None]
    race = Race((1, 3), 1.0)
    race.look(3, values)
    assert race.leader[0] == 0
    assert race.running.tolist() == [[True, True, False]]
    race.look(4, values)
    assert race.leader[0] == 1
    assert race.seeds.tolist() == [[4, 4, 3]]
    assert race.running.all()
    race.look(5, values)
    assert race.seeds.tolist() == [[5, 5, 5]]


def test_who_lost_by_a_run_is_out_and_does_not_lead():
    values = np.random.default_rng(6).normal(size=(1, 3, 5)) + np.array([5.0, 0, 0])[:, None]
    race = Race((1, 3), 1.0)
    race.look(3, values, lost=np.array([[True, False, False]]))
    assert not race.left[0, 0]
    assert not race.running[0, 0]
    assert race.leader[0] != 0


def late_at(low: np.ndarray, *places: tuple[int, int]) -> np.ndarray:
    low = low.copy()
    for variant, seed in places:
        low[0, variant, seed] = -np.inf
    return low


def test_a_late_run_bounds_its_difference_from_one_side():
    high = np.random.default_rng(7).normal(size=(1, 2, 6))
    pairs = pairs_of(high, late_at(high, (1, 2)))
    differences = high[0, 1] - high[0, 0]
    assert pairs.mean[0, 0, 1] == pytest.approx(differences.mean())  # the late run's end bounds it from above
    assert np.isinf(pairs.mean[0, 1, 0])  # nothing bounds how much dearer the late one is
    assert pairs.closed.tolist() == [[[False, False], [True, False]]]


def test_a_seed_in_which_neither_arrives_does_not_count():
    high = np.random.default_rng(8).normal(size=(1, 2, 6))
    pairs = pairs_of(high, late_at(high, (0, 2), (1, 2)))
    assert pairs.count[0, 0, 1] == 5
    assert pairs.mean[0, 0, 1] == pytest.approx(np.delete(high[0, 1] - high[0, 0], 2).mean())
    fewer = pairs_of(high[:, :, :5], late_at(high, (0, 2), (1, 2))[:, :, :5])
    assert np.isinf(fewer.mean[0, 0, 1])  # four pairs bound nothing where runs are late


def test_who_is_late_does_not_win_and_loses_to_who_arrives():
    high = np.random.default_rng(9).normal(0, 0.1, (1, 3, 12)) + np.array([0.0, 0.0, -3.0])[:, None]
    race = run(high, 0.1, late_at(high, *((2, seed) for seed in range(12))))
    assert not race.left[0, 2]
    assert race.leader[0] < 2


def test_a_race_that_nobody_can_win_is_over():
    high = np.random.default_rng(10).normal(0, 0.1, (1, 2, 40))
    race = run(high, 0.1, late_at(high, (0, 1), (1, 0)))
    assert race.over[0]
    assert not race.decided[0]
    assert race.seeds.max() == 3


@pytest.mark.parametrize(
    "spreads", [np.ones(6), np.array([2.0, 1, 1, 1, 1, 1]), np.exp(np.linspace(-0.7, 0.7, 6))]
)
@pytest.mark.parametrize("scale", [0.7, 2.0])
def test_the_choice_is_rarely_wrong_where_all_others_are_a_margin_behind(spreads, scale):
    rng = np.random.default_rng(11)
    values = scale * np.array(spreads)[:, None] * rng.normal(size=(600, 6, 40))
    values[:, 0] += 1.0001
    race = run(values, 1.0)
    wrong = race.decided & (race.leader != 0)
    assert wrong.mean() <= 0.05
    assert (race.equivalent[:, 1:].any(axis=1)).mean() <= 0.05


def test_bounds_of_differences_to_the_best_hold_together():
    rng = np.random.default_rng(12)
    values = rng.normal(size=(600, 6, 40))
    race, wrong = Race((600, 6), 0.01), np.zeros(600, bool)
    for n in looks(40):
        race.look(n, values)
        wrong |= (race.upper[:, 1:, 0] < 0).any(axis=1)
    assert wrong.mean() <= 0.06  # 5 %, and what 600 races say of it


def test_the_table_of_differences_has_the_bounds_that_decided():
    rng = np.random.default_rng(13)
    values = rng.normal(size=(1, 6, 40)) + np.array([3.0, 2.9, 0, -1, -5, -8])[:, None]
    race = run(values, 1.0)
    mean, low, high = race.against_leader(values)[:, 0]
    leader = int(race.leader[0])
    assert mean[leader] == 0
    for at, n in enumerate(race.seeds[0]):
        assert mean[at] == pytest.approx((values[0, at, :n] - values[0, leader, :n]).mean())
        assert low[at] <= mean[at] <= high[at]
        if not race.left[0, at]:
            assert mean[at] < 0


def test_bounds_are_infinite_where_nothing_is_known():
    pairs = Differences(
        np.full((1, 1, 1), np.inf), np.zeros((1, 1, 1)), np.ones((1, 1, 1)), np.ones((1, 1, 1), bool)
    )
    spread = pooled_spread(pairs.variance, np.ones((1, 1), bool), 3)
    assert np.isinf(pairs.mean + half_width(pairs, spread, 2.0)).all()


def test_the_best_is_never_better_than_the_leader_by_more_than_the_shortfall():
    """At all looks at once, in 95 % of races."""
    rng = np.random.default_rng(7)
    races, k, seeds = 400, 6, 12
    means = np.linspace(0.0, 3.0, k)
    high = (
        means[None, :, None]
        + rng.normal(0.0, 2.0, (races, k, seeds))
        + rng.normal(0.0, 5.0, (races, 1, seeds))
    )
    race, held = Race((races, k), 0.2), np.ones(races, bool)
    for n in looks(seeds):
        race.look(n, high)
        held &= means.max() - means[race.leader] <= race.shortfall + 1e-12
    assert held.mean() >= 0.95
    assert (race.shortfall[race.decided] <= 0.2).all()
