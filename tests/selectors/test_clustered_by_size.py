"""Clustered Sampling by size: unbiased draws of less variance than multinomial ones."""

from __future__ import annotations

import numpy as np
from plain_views import chosen, updates, view

from flsel.selectors.clustered_by_size import ClusteredSamplingBySize

SIZES = [900, 500, 60, 50, 40, 30, 20, 10]


def weight_moments(sizes, clients_per_round, *, absent=(), times=1500):
    selector, total, square = ClusteredSamplingBySize(), np.zeros(len(sizes)), np.zeros(len(sizes))
    for seed in range(times):
        now = view(sizes, clients_per_round, seed=seed, absent=absent)
        plan, weight = chosen(selector.select(now)), np.zeros(len(sizes))
        np.add.at(weight, plan, selector.weigh(now, updates(plan, sizes)).numpy())
        total, square = total + weight, square + weight**2
    return total / times, square / times - (total / times) ** 2


def test_weights_are_unbiased_and_their_variance_is_below_multinomials():
    p = np.array(SIZES) / sum(SIZES)
    mean, variance = weight_moments(SIZES, 4)
    multinomial = p * (1 - p) / 4
    np.testing.assert_allclose(mean, p, atol=5 * np.sqrt(multinomial.max() / 1500))
    assert variance[0] < 0.3 * multinomial[0]
    assert variance.sum() < multinomial.sum()


def test_the_biggest_client_fills_its_rows_alone():
    for seed in range(50):
        plan = chosen(ClusteredSamplingBySize().select(view(SIZES, 4, seed=seed)))
        assert len(plan) == 4
        assert plan[:2] == [0, 0]
