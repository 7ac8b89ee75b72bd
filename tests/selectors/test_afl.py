"""Active Federated Learning: valuations, dropped clients, tempered and uniform draws."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_views import assert_frequencies, chosen, updates, view

from flsel.rng import generator
from flsel.selectors.afl import AFL, tempered


def seen(selector: AFL, value: list[float]) -> AFL:
    """Give every client a valuation (NaN: never took part)."""
    selector.reset(torch.ones(len(value), dtype=torch.int64), 2)
    selector.value_ = torch.tensor(value, dtype=torch.float64)
    return selector


def reference_inclusion(value, clients_per_round, *, alpha1, alpha2, alpha3):
    """Chance of each client to be selected, by enumerating the orders of Algorithm 1; no ties."""
    n, uniform = len(value), math.ceil(round(alpha3 * clients_per_round, 6))
    active = clients_per_round - uniform
    dropped = min(math.floor(round(alpha1 * n, 6)), n - active)
    kept = sorted(range(n), key=lambda k: value[k])[dropped:]
    chance = np.zeros(n)
    for order in permutations(kept, active):
        p, left = 1.0, list(kept)
        for client in order:
            p *= math.exp(alpha2 * value[client]) / sum(math.exp(alpha2 * value[k]) for k in left)
            left.remove(client)
        inside = np.isin(np.arange(n), order)
        chance += p * np.where(inside, 1.0, uniform / (n - active))
    return chance


@pytest.mark.parametrize(
    ("clients_per_round", "alpha1", "alpha2", "alpha3"),
    [
        (3, 1 / 3, 0.7, 1 / 3),
        (3, 0.0, 2.0, 0.0),
        (2, 0.75, 0.01, 0.1),
        (4, 0.5, 1.0, 0.5),
        (2, 0.4, 0.0, 0.0),
        (3, 0.9, 1.0, 1.0),
    ],
)
def test_selection_follows_algorithm_1(clients_per_round, alpha1, alpha2, alpha3):
    value = [0.3, 2.0, 1.1, -0.4, 0.9, 1.7]
    arguments = {"alpha1": alpha1, "alpha2": alpha2, "alpha3": alpha3}
    selector = seen(AFL(**arguments), value)
    chance = reference_inclusion(value, clients_per_round, **arguments)
    assert chance.sum() == pytest.approx(clients_per_round)
    assert_frequencies(
        lambda seed: chosen(selector.select(view([1] * 6, clients_per_round, seed=seed))), chance
    )


def test_valuation_is_root_size_times_loss_and_stays_until_the_next_report():
    sizes = [4, 9, 0, 16]
    selector = AFL()
    selector.reset(torch.tensor(sizes), 2)
    assert selector.value_[2] == 0.0
    assert selector.value_[[0, 1, 3]].isnan().all()
    selector.observe(view(sizes, 2), updates([3, 0], sizes, [2.5, 1.5]), torch.ones(2))
    assert selector.value_[[0, 3]].tolist() == [3.0, 10.0]
    selector.observe(view(sizes, 2), updates([3], sizes, [0.25]), torch.ones(1))
    assert selector.value_[[0, 3]].tolist() == [3.0, 1.0]
    assert selector.value_[1].isnan()


def test_clients_never_seen_come_first_and_uniformly():
    value = [math.nan, 9.0, math.nan, 9.0, math.nan]

    def draw(seed):
        return chosen(seen(AFL(), value).select(view([1] * 5, 2, seed=seed)))

    assert_frequencies(draw, [2 / 3, 0, 2 / 3, 0, 2 / 3])
    for seed in range(20):
        plan = chosen(seen(AFL(), value).select(view([1] * 5, 4, seed=seed)))
        assert set(plan[:3]) == {0, 2, 4}
        assert len(set(plan)) == 4


def test_everyone_is_seen_after_the_fewest_rounds():
    selector, sizes, met = AFL(), [3] * 10, []
    selector.reset(torch.tensor(sizes), 2)
    for seed in range(4):
        now = view(sizes, 3, seed=seed)
        plan = chosen(selector.select(now))
        met += plan
        selector.observe(now, updates(plan, sizes, [1.0] * 3), torch.ones(3))
    assert set(met) == set(range(10))


def test_dropped_clients_keep_their_valuation():
    value = [1.0, 2.0, 3.0, 4.0]
    selector = seen(AFL(alpha1=0.75, alpha2=1.0, alpha3=0.0), value)
    assert chosen(selector.select(view([1] * 4, 1))) == [3]
    assert selector.value_.tolist() == value


@pytest.mark.parametrize(
    ("clients_per_round", "alpha3", "uniform"),
    [(5, 0.1, 1), (30, 0.1, 3), (10, 0.3, 3), (4, 0.0, 0), (4, 1.0, 4)],
)
def test_uniform_share_is_rounded_up_but_not_by_a_rounding_error(clients_per_round, alpha3, uniform):
    selector = seen(AFL(alpha1=0.0, alpha2=1000.0, alpha3=alpha3), list(range(1000)))
    sure = set(range(1000 - (clients_per_round - uniform), 1000))
    plans = [
        set(chosen(selector.select(view([1] * 1000, clients_per_round, seed=seed)))) for seed in range(10)
    ]
    assert all(len(plan) == clients_per_round and sure <= plan for plan in plans)
    assert uniform == 0 or any(plan - set(range(1000 - clients_per_round, 1000)) for plan in plans)


@given(
    st.lists(st.floats(-100, 100), min_size=1, max_size=30, unique=True),
    st.integers(0, 30),
    st.sampled_from([0.0, 0.29, 0.5, 0.57, 0.75, 0.99]),
    st.randoms(use_true_random=False),
)
def test_kept_clients_are_the_largest_and_enough(value, count, alpha1, random):
    count = min(count, len(value))
    weights = tempered(np.array(value), count, alpha1=alpha1, alpha2=0.5, rng=generator(0, "test"))
    kept = np.flatnonzero(weights > -np.inf)
    exact = len(value) * round(100 * alpha1) // 100
    assert len(kept) == len(value) - min(exact, len(value) - count)
    assert set(np.array(value)[kept]) == set(sorted(value)[len(value) - len(kept) :])
    np.testing.assert_allclose(weights[kept], 0.5 * np.array(value)[kept])
    order = random.sample(range(len(value)), len(value))
    renumbered = tempered(np.array(value)[order], count, alpha1=alpha1, alpha2=0.5, rng=generator(1, "test"))
    np.testing.assert_array_equal(renumbered, weights[order])


def test_fewer_are_dropped_where_too_few_would_be_left():
    selector = seen(AFL(alpha1=0.75, alpha2=1000.0, alpha3=0.2), list(range(10)))
    for seed in range(10):
        plan = chosen(selector.select(view([1] * 10, 5, seed=seed)))
        assert len(set(plan)) == 5
        assert {6, 7, 8, 9} <= set(plan)


@pytest.mark.parametrize("report", [math.nan, math.inf, -math.inf])
def test_a_report_that_is_no_number_leaves_the_old_valuation(report):
    selector = seen(AFL(), [1.0, 2.0, math.nan])
    now = view([1] * 3, 3)
    plan = chosen(selector.select(now))
    selector.observe(now, updates(plan, [1] * 3, [report] * 3), torch.ones(3))
    assert selector.value_.tolist() == [1.0, 2.0, 0.0]


def test_a_client_whose_update_is_lost_is_not_new_for_ever():
    selector = AFL()
    selector.reset(torch.ones(4, dtype=torch.int64), 2)
    first = chosen(selector.select(view([1] * 4, 2)))
    second = chosen(selector.select(view([1] * 4, 2)))
    assert set(first) | set(second) == {0, 1, 2, 3}


def test_huge_valuations_and_ties():
    selector = seen(AFL(alpha1=0.0, alpha2=10.0, alpha3=0.0), [1e300, 1e300, 5.0])
    assert_frequencies(lambda seed: chosen(selector.select(view([1] * 3, 2, seed=seed))), [1, 1, 0], times=50)
    equal = seen(AFL(alpha1=0.5, alpha2=1.0, alpha3=0.0), [7.0] * 4)
    assert_frequencies(lambda seed: chosen(equal.select(view([1] * 4, 1, seed=seed))), [0.25] * 4)


def test_weights_are_equal():
    assert AFL().weigh(view([1, 3], 2), updates([0, 1], [1, 3])).tolist() == [0.5, 0.5]


def test_a_hundred_thousand_clients():
    sizes = [3] * 100_000
    selector = seen(AFL(), np.linspace(0, 9, 100_000).tolist())
    now = view(sizes, 1000)
    plan = chosen(selector.select(now))
    report = updates(plan, sizes, [1.0] * 1000)
    selector.observe(now, report, torch.ones(1000))
