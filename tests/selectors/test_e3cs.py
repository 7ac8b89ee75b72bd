"""E3CS: chances against the cap found by bisection, and what clients that never deliver fall to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_views import assert_frequencies, chosen, inclusion, updates, view

from flsel.rng import generator
from flsel.selectors.e3cs import E3CS, capped_chances

SIZES = [3, 1, 2, 4, 5, 2]


@given(
    st.lists(st.floats(1e-8, 1.0), min_size=2, max_size=10).map(np.array),
    st.floats(0.0, 0.999),
    st.integers(1, 9),
)
def test_chances_sum_to_k_and_are_those_of_the_cap(weights, quota, count):
    weights, count = weights / weights.max(), min(count, len(weights))
    sigma = quota * count / len(weights)
    chance, capped = capped_chances(weights, count, sigma)
    assert chance.sum() == pytest.approx(count)
    assert (chance >= sigma - 1e-9).all()
    assert (chance <= 1).all()
    if count == len(weights):
        return
    spread = count - len(weights) * sigma

    def largest(cap: float) -> float:
        low = np.minimum(weights, cap)
        return float(sigma + spread * (low / low.sum()).max())

    if largest(1.0) > 1 + 1e-9:
        low, high = 0.0, 1.0
        for _ in range(200):
            cap = (low + high) / 2
            low, high = (low, cap) if largest(cap) > 1 else (cap, high)
        limited = np.minimum(weights, low)
        np.testing.assert_allclose(chance, sigma + spread * limited / limited.sum(), atol=1e-6)
        assert capped.any()
        np.testing.assert_allclose(chance[capped], 1.0)
    else:
        np.testing.assert_allclose(chance, sigma + spread * weights / weights.sum(), atol=1e-6)


@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_weights_of_zero_leave_the_rest_to_all_alike(sigma):
    chance, _ = capped_chances(np.array([1.0, 0.0, 0.0, 0.0]), 2, sigma)
    np.testing.assert_allclose(chance, [1.0, 1 / 3, 1 / 3, 1 / 3])


def test_equal_weights_are_uniform():
    selector = E3CS()
    assert_frequencies(lambda seed: chosen(drawn(selector, 2, seed=seed)), [1 / 3] * 6)


def drawn(selector: E3CS, k: int, *, seed: int = 0, weights: list[float] | None = None, round: int = 0):
    selector.reset(torch.tensor(SIZES), 2)
    if weights:
        selector.log_weight_ = torch.tensor(weights).double().log()
    return selector.select(replace(view(SIZES, k, seed=seed), round=round))


def test_cohorts_are_drawn_one_by_one_in_proportion():
    weights = [1.0, 0.5, 0.2, 0.1, 0.1, 0.1]
    chance = 0.5 * 2 / 6 + (2 - 1) * np.array(weights) / 2
    assert_frequencies(
        lambda seed: chosen(drawn(E3CS(0.5), 2, seed=seed, weights=weights)), inclusion(chance.tolist(), 2)
    )


def test_a_success_raises_a_weight_by_its_formula():
    selector, weights = E3CS(0.25, eta=0.8), [1.0, 0.5, 0.2, 0.1, 0.1, 0.1]
    cohort = chosen(drawn(selector, 2, weights=weights))
    before = selector.log_weight_.clone()
    back = updates(cohort[:1], SIZES, [0.0])
    shown = view(SIZES, 2)
    selector.observe(shown, back, selector.weigh(shown, back))
    sigma = 0.25 * 2 / 6
    chance = sigma + (2 - 6 * sigma) * np.array(weights) / 2
    assert chance.max() < 1
    rise = (2 - 6 * sigma) * 0.8 / chance[cohort[0]] / 6
    moved = (selector.log_weight_ - before).numpy()
    moved -= moved[cohort[1]]  # The one that failed stays where it was.
    expected = np.zeros(6)
    expected[cohort[0]] = rise
    np.testing.assert_allclose(moved, expected, atol=1e-12)


@pytest.mark.parametrize("quota", [0.0, 0.4])
def test_clients_that_never_deliver_fall_to_their_quota(quota):
    selector, hits, rounds = E3CS(quota), np.zeros(6), 3000
    selector.reset(torch.tensor(SIZES), 2)
    for round in range(rounds):
        shown = replace(view(SIZES, 2, seed=round), rounds=rounds, round=round)
        cohort = chosen(selector.select(shown))
        hits[cohort] += round >= rounds // 2
        arrived = [client for client in cohort if client >= 3] or cohort[:0]
        if arrived:
            back = updates(arrived, SIZES, [0.0] * len(arrived))
            selector.observe(shown, back, selector.weigh(shown, back))
    assert hits[:3].max() / (rounds / 2) <= quota / 3 + 0.06
    chance, _ = capped_chances(selector.log_weight_.exp().numpy(), 2, quota * 2 / 6)
    np.testing.assert_allclose(chance[:3], quota / 3, atol=0.01)


def test_the_quota_may_begin_later():
    late, weights = E3CS(1.0, 0.5), [1.0, 1e-12, 1e-12, 1e-12, 1e-12, 1e-12]
    early = [chosen(drawn(late, 1, seed=s, weights=weights, round=4)) for s in range(30)]
    assert early == [[0]] * 30
    assert_frequencies(lambda seed: chosen(drawn(late, 1, seed=seed, weights=weights, round=5)), [1 / 6] * 6)


def test_weights_stay_finite():
    selector, rng = E3CS(0.0, eta=1e3), generator(0, "test")
    selector.reset(torch.tensor(SIZES), 2)
    for seed in range(200):
        shown = view(SIZES, int(rng.integers(1, 7)), seed=seed)
        back = updates(chosen(selector.select(shown)), SIZES, [])
        selector.observe(shown, back, selector.weigh(shown, back))
        assert selector.log_weight_.isfinite().all()
        assert math.isclose(float(selector.log_weight_.max()), 0.0)
