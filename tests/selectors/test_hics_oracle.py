"""HiCS-FL with true label entropies: no warm-up, draws by the labels' balance."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from plain_views import assert_frequencies, chosen, inclusion, view
from scipy.special import softmax

from flsel.selector import Need, Plan, Updates
from flsel.selectors._hics import label_entropy
from flsel.selectors.hics_oracle import HiCSOracle

COUNTS = [[9, 0, 0], [0, 6, 0], [3, 3, 3], [4, 4, 4], [0, 0, 0]]


class Labels:
    def labels(self):
        return torch.tensor(COUNTS)


def at(clients_per_round, round, seed=0, absent=()):
    sizes = np.sum(COUNTS, axis=1).tolist()
    needs = Need.LABELS | Need.HEAD
    now = view(sizes, clients_per_round, seed=seed, absent=absent, needs=needs, answers=Labels())
    return replace(now, round=round, rounds=100)


def begun(**arguments):
    selector = HiCSOracle(**arguments)
    selector.reset(torch.tensor(COUNTS).sum(1), 3)
    return selector


def test_label_entropy():
    np.testing.assert_allclose(
        label_entropy(np.array([[1, 1, 2], [5, 0, 0], [0, 0, 0]])), [1.5 * math.log(2), 0, 0]
    )


def test_draws_follow_the_true_entropies_from_the_first_round():
    selector = begun(gamma0=1.0, num_clusters=2)
    pi = softmax(0.99 * np.array([0.0, math.log(3)]))
    weights = [pi[0] * 9 / 15, pi[0] * 6 / 15, pi[1] * 9 / 21, pi[1] * 12 / 21, 0.0]
    assert_frequencies(lambda seed: chosen(selector.select(at(2, 0, seed))), inclusion(weights, 2))


def test_angles_are_those_of_the_last_updates():
    selector = begun(lam=1.0, gamma0=0.0, num_clusters=2)
    same = torch.tensor([[1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]])
    ones = torch.ones(4, dtype=torch.int64)
    answer = {"head": {"weight": same[:, :, None], "bias": same}}
    now = at(4, 1)
    selector.observe(now, Updates(Plan.star(range(4)), ones, ones, now.needs, answer), torch.ones(4))
    chance = [0.5 * 9 / 24, 0.5 * 6 / 24, 0.5 * 9 / 24, 0.5, 0.0]
    assert_frequencies(lambda seed: chosen(selector.select(at(1, 2, seed))), chance)
    broken = {"head": {"weight": same[:1, :, None] * math.nan, "bias": same[:1] * math.nan}}
    before = selector.signal_.clone()
    selector.observe(now, Updates(Plan.star([2]), ones[:1], ones[:1], now.needs, broken), torch.ones(1))
    assert torch.equal(selector.signal_, before)
