"""MD sampling: frequencies, multiplicity and unbiased weights."""

from __future__ import annotations

import numpy as np
import torch
from plain_views import assert_frequencies, chosen, updates, view

from flsel.selectors.md import MD

SIZES = [5, 1, 0, 14]
SHARES = np.array(SIZES) / 20


def test_draws_are_independent_with_replacement():
    plans = [chosen(MD().select(view(SIZES, 3, seed=seed))) for seed in range(1500)]
    for position in range(3):
        assert_frequencies(lambda seed, k=position: plans[seed][k : k + 1], SHARES, times=1500)
    assert_frequencies(lambda seed: plans[seed], 1 - (1 - SHARES) ** 3, times=1500)


def test_weights_are_unbiased_and_count_repeats():
    total, square = np.zeros(4), np.zeros(4)
    for seed in range(2000):
        now = view(SIZES, 3, seed=seed)
        plan = MD().select(now)
        weight = np.zeros(4)
        np.add.at(weight, chosen(plan), MD().weigh(now, updates(chosen(plan), SIZES)).numpy())
        total, square = total + weight, square + weight**2
    variance = SHARES * (1 - SHARES) / 3
    np.testing.assert_allclose(total / 2000, SHARES, atol=5 * np.sqrt(variance.max() / 2000))
    np.testing.assert_allclose(square / 2000 - (total / 2000) ** 2, variance, atol=0.012)


def test_a_pool_smaller_than_the_clients_per_round_repeats_clients():
    plan = MD().select(view(SIZES, 6, absent=[1, 3]))
    assert chosen(plan) == [0] * 6
    torch.testing.assert_close(MD().weigh(view(SIZES, 6), updates([0] * 6, SIZES)).sum().item(), 1.0)


def test_a_pool_without_examples_is_drawn_uniformly():
    assert_frequencies(
        lambda seed: chosen(MD().select(view([0, 0, 9], 1, seed=seed, absent=[2]))), [0.5, 0.5, 0.0]
    )
