"""F3AST: the rates of the optimum, weights without bias in the long run, and clients that come and go."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_views import chosen, updates, view

from flsel.rng import generator
from flsel.selectors.f3ast import F3AST

SIZES = [10, 2, 4, 30, 4, 1, 9]
SHARE = np.array(SIZES) / sum(SIZES)


def after_rounds(
    selector: F3AST, rounds: int, k: int, presence: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each client was chosen in the second half, and the sum of its weights, per round."""
    selector.reset(torch.tensor(SIZES), 2)
    hits, weights, rng = np.zeros(7), np.zeros(7), generator(0, "presence")
    for round in range(rounds):
        absent = np.flatnonzero(rng.random(7) >= presence).tolist()
        if len(absent) == 7:
            continue
        shown = view(SIZES, k, seed=round, absent=absent)
        cohort = chosen(selector.select(shown))
        assert not set(cohort) & set(absent)
        if round >= rounds // 2:
            hits[cohort] += 1
            weights[cohort] += selector.weigh(shown, updates(cohort, SIZES)).numpy()
    return hits / (rounds - rounds // 2), weights / (rounds - rounds // 2)


def optimal_rates(k: int) -> np.ndarray:
    """Minimise sum p^2 / r with sum r = k and r <= 1 by bisection of the price: r = min(1, c p)."""
    low, high = 0.0, 1e6
    for _ in range(200):
        price = (low + high) / 2
        low, high = (price, high) if np.minimum(1, price * SHARE).sum() < k else (low, price)
    return np.minimum(1, low * SHARE)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_with_everybody_there_the_rates_approach_the_optimum_and_weights_have_no_bias(k: int) -> None:
    selector = F3AST(0.002)
    hits, weights = after_rounds(selector, 6000, k)
    np.testing.assert_allclose(hits, optimal_rates(k), atol=0.02)
    np.testing.assert_allclose(selector.rate_, optimal_rates(k), atol=0.02)
    np.testing.assert_allclose(weights, SHARE, rtol=0.05)
    assert selector.rate_.sum() == pytest.approx(k, rel=1e-4)


def test_where_clients_come_and_go_weights_have_no_bias_in_the_long_run() -> None:
    _, weights = after_rounds(F3AST(0.002), 8000, 2, presence=0.6)
    np.testing.assert_allclose(weights, SHARE, rtol=0.12)


def test_rates_are_moving_averages_and_the_largest_ratio_is_chosen() -> None:
    selector = F3AST(0.1)
    selector.reset(torch.tensor(SIZES), 2)
    first = chosen(selector.select(view(SIZES, 2)))
    assert 2 * SHARE[3] == 1.0  # so that all clients rank alike at first
    expected = np.minimum(1, 2 * SHARE) * 0.9
    expected[first] += 0.1
    np.testing.assert_allclose(selector.rate_, expected)
    shown = view(SIZES, 2, absent=[3])
    order = chosen(selector.select(shown))
    ratio = np.where(np.arange(7) == 3, 0, SHARE / expected)
    np.testing.assert_allclose(ratio[order], np.sort(ratio)[:-3:-1])
    weights = selector.weigh(shown, updates(order, SIZES)).numpy()
    np.testing.assert_allclose(weights, SHARE[order] / (0.9 * expected[order] + 0.1))


def test_all_clients_train_with_the_defaults() -> None:
    selector, sizes = F3AST(), [int(n) for n in generator(0, "sizes").integers(5, 200, 30)]
    selector.reset(torch.tensor(sizes), 2)
    seen: set[int] = set()
    for round in range(40):
        shown = view(sizes, 6, seed=round)
        cohort = chosen(selector.select(shown))
        total = selector.weigh(shown, updates(cohort, sizes)).sum()
        assert 0.5 < float(total) < 1.5
        seen |= set(cohort)
    assert seen == set(range(30))
