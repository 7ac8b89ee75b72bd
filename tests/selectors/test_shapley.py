"""Shapley values against the mean over all orders, efficiency, and what truncation and caching do."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flsel.rng import generator
from flsel.selectors._shapley import exact, sampled


def game(players: int, seed: int):
    rng = generator(seed, "game")
    worth = {
        coalition: float(rng.normal())
        for size in range(players + 1)
        for coalition in itertools.combinations(range(players), size)
    }
    return worth.__getitem__


def over_all_orders(value, players: int) -> np.ndarray:
    found = np.zeros(players)
    for order in itertools.permutations(range(players)):
        for place, player in enumerate(order):
            before = tuple(sorted(order[:place]))
            found[player] += value(tuple(sorted((*before, player)))) - value(before)
    return found / math.factorial(players)


@pytest.mark.parametrize("players", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_exact_values_are_the_mean_over_all_orders(players, seed):
    value = game(players, seed)
    found = exact(value, players)
    np.testing.assert_allclose(found, over_all_orders(value, players), atol=1e-12)
    assert found.sum() == pytest.approx(value(tuple(range(players))) - value(()))


@pytest.mark.parametrize("players", [1, 3, 5])
def test_every_order_is_efficient_and_an_additive_game_needs_one(players):
    value = game(players, 7)
    found = sampled(value, players, generator(0, "orders"), sweeps=1, truncation=0.0)
    assert found.sum() == pytest.approx(value(tuple(range(players))) - value(()))
    alone = generator(1, "alone").normal(size=players)
    found = sampled(
        lambda c: float(alone[list(c)].sum()), players, generator(0, "o"), sweeps=1, truncation=0.0
    )
    np.testing.assert_allclose(found, alone, atol=1e-12)


def test_estimates_are_unbiased_over_draws():
    value, times = game(4, 3), 400
    drawn = np.array(
        [sampled(value, 4, generator(seed, "o"), sweeps=1, truncation=0.0) for seed in range(times)]
    )
    error = 5 * drawn.std(axis=0) / math.sqrt(times)
    assert (np.abs(drawn.mean(axis=0) - over_all_orders(value, 4)) <= error + 1e-12).all()


def test_no_coalition_is_asked_for_twice():
    value, asked = game(5, 1), []
    sampled(lambda c: (asked.append(c), value(c))[1], 5, generator(0, "o"), sweeps=50, truncation=0.0)
    assert len(asked) == len(set(asked)) <= 2**5


def test_what_is_close_to_the_whole_is_not_asked_for():
    asked = []

    def value(coalition):
        asked.append(coalition)
        return float(0 in coalition)

    found = sampled(value, 3, generator(0, "o"), sweeps=3, truncation=0.1)
    assert found.tolist() == [1.0, 0.0, 0.0]
    assert {(), (0, 1, 2)} <= set(asked)
    asked.clear()
    found = sampled(lambda c: asked.append(c) or 1.0, 3, generator(0, "o"), sweeps=3, truncation=0.1)
    assert found.tolist() == [0.0] * 3
    assert asked == [(), (0, 1, 2)]


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_worth_that_is_not_finite_shows(bad):
    value = game(3, 0)
    found = sampled(lambda c: bad if 1 in c else value(c), 3, generator(0, "o"), sweeps=3, truncation=1e-4)
    assert not np.isfinite(found).all()
