"""Sampling by data share without replacement: chances by enumeration, pool and weights."""

from __future__ import annotations

import pytest
import torch
from plain_views import assert_frequencies, chosen, inclusion, updates, view

from flsel.selectors.weighted import Weighted

SIZES = [5, 1, 0, 14, 4]


@pytest.mark.parametrize("clients_per_round", [1, 2, 3])
def test_clients_are_drawn_one_after_another(clients_per_round):
    plans = [chosen(Weighted().select(view(SIZES, clients_per_round, seed=seed))) for seed in range(1500)]
    assert_frequencies(
        lambda seed: plans[seed], inclusion([n / 24 for n in SIZES], clients_per_round), times=1500
    )
    # The first of the cohort is drawn by share alone, whatever K is.
    assert_frequencies(lambda seed: plans[seed][:1], [n / 24 for n in SIZES], times=1500)


def test_inclusion_is_not_proportional_to_the_share():
    # The reason why equal weights are biased: one client holds all but two of 100 examples.
    chance = inclusion([0.98, 0.01, 0.01], 2)
    assert chance[0] < 1
    assert chance[1] > 0.49
    assert_frequencies(lambda seed: chosen(Weighted().select(view([98, 1, 1], 2, seed=seed))), chance)


def test_shares_are_the_pools():
    def draw(seed):
        return chosen(Weighted().select(view(SIZES, 1, seed=seed, absent=[3])))

    assert_frequencies(draw, [0.5, 0.1, 0, 0, 0.4])


def test_every_update_weighs_the_same():
    weights = Weighted().weigh(view(SIZES, 3), updates([3, 0, 1], SIZES))
    torch.testing.assert_close(weights, torch.full((3,), 1 / 3, dtype=torch.float64))
