"""Views and updates for selector tests: everything given, nothing computed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from flsel.metrics import Ledger
from flsel.rng import generator
from flsel.selector import Need, Plan, Updates, View


class Losses:
    """Answers losses from a table and notes who was asked."""

    def __init__(self, table: Sequence[float]) -> None:
        self.table = torch.tensor(table, dtype=torch.float64)
        self.asked: list[list[int]] = []

    def losses(self, clients, at):
        assert at is None
        self.asked.append(list(clients))
        return self.table[clients]


def view(
    sizes: Sequence[int],
    clients_per_round: int,
    *,
    seed: int = 0,
    absent: Sequence[int] = (),
    needs: Need = Need.NONE,
    answers: object = None,
) -> View:
    available = torch.ones(len(sizes), dtype=torch.bool)
    available[list(absent)] = False
    return View(
        round=0,
        rounds=10,
        clients_per_round=clients_per_round,
        available=available,
        sizes=torch.tensor(sizes),
        num_classes=2,
        params={},
        rng=generator(seed, "select", 0),
        ledger=Ledger(),
        needs=needs,
        answers=answers,
    )


def updates(clients: Sequence[int], sizes: Sequence[int], own_loss: Sequence[float] = ()) -> Updates:
    return Updates(
        plan=Plan.star(clients),
        sizes=torch.tensor([sizes[k] for k in clients]),
        steps=torch.ones(len(clients), dtype=torch.int64),
        needs=Need.OWN_LOSS,
        answers={"own_loss": torch.tensor(own_loss, dtype=torch.float64)},
    )


def chosen(plan: Plan) -> list[int]:
    assert all(len(path) == 1 for path in plan.paths)
    return [path[0] for path in plan.paths]


def inclusion(weights: Sequence[float], count: int) -> np.ndarray:
    """Chance of each item to be among ``count`` successive draws, by enumerating all orders."""
    chance = np.zeros(len(weights))
    for order in itertools.permutations(range(len(weights)), count):
        p, left = 1.0, math.fsum(weights)
        for item in order:
            p *= weights[item] / left if left > 0 else 0.0
            left -= weights[item]
        chance[list(order)] += p
    return chance


def assert_frequencies(
    draw: Callable[[int], Sequence[int]], chance: Sequence[float], times: int = 600
) -> None:
    """Compare how often items are drawn (once a draw) with their chances, within 5 standard errors."""
    hits = np.zeros(len(chance))
    for seed in range(times):
        hits[list(set(draw(seed)))] += 1
    p = np.asarray(chance)
    error = np.sqrt(np.maximum(p * (1 - p), 1e-12) / times)
    assert np.all(np.abs(hits / times - p) <= 5 * error + 1e-12), (hits / times, p)
