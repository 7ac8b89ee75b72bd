"""Every selector among clients without examples, alone, and where more are asked for than there are."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from flsel.config.plugin import Plugin
from flsel.selector import IDLE, Selector
from flsel.selectors.complete import Complete
from flsel.selectors.divfl import DivFL
from flsel.selectors.fedcs import FedCS
from flsel.selectors.gradnorm import GradientNorm
from flsel.selectors.haccs import HACCS
from flsel.testing.fake import CLASSES, FakeFederation, World, label_counts

SHIPPED = list(Plugin(Selector).classes().values())
SAMPLING = [selector for selector in SHIPPED if selector is not Complete]


def cohorts(selector: Selector, world: World, rounds: int = 10):
    """Execute some rounds; yield who was available and who was visited in each communication round."""
    federation = FakeFederation(world)
    selector.reset(federation.sizes.clone(), CLASSES)
    while federation.round < rounds:
        view = federation.view(selector.needs)
        plan = selector.select(view)
        updates = federation.updates(plan, selector.needs)
        weights = selector.weigh(view, updates)
        selector.observe(view, updates, weights)
        for hop in range(plan.hops):
            visited = [path[hop] for path in plan.paths if path[hop] != IDLE]
            yield federation.available(federation.round + hop), visited, weights
        federation.advance(updates, weights)


def emptied(counts: torch.Tensor, clients: list[int]) -> torch.Tensor:
    rest = counts.clone()
    rest[clients] = 0
    return rest


@pytest.mark.parametrize("presence", [0.4, 1.0])
@pytest.mark.parametrize("selector", SAMPLING, ids=lambda c: c.__name__)
def test_clients_without_examples_come_only_where_nobody_else_is_there(selector, presence):
    world = World(emptied(label_counts(12), [0, 3, 4, 7, 8, 11]), clients_per_round=4, presence=presence)
    some = world.counts.sum(1) > 0
    met = False
    for available, visited, _ in cohorts(selector(), world):
        if (available & some).any():
            assert some[visited].all(), f"{selector.__name__} chose {visited}"
            met = True
    assert met


@pytest.mark.parametrize("selector", SHIPPED, ids=lambda c: c.__name__)
def test_more_are_asked_for_than_there_are(selector):
    world = World(label_counts(6), clients_per_round=6, presence=0.3)
    for available, visited, _ in cohorts(selector(), world):
        assert visited
        assert set(visited) <= set(np.flatnonzero(available.numpy()).tolist())


@pytest.mark.parametrize("examples", [1, 30])
@pytest.mark.parametrize("selector", SHIPPED, ids=lambda c: c.__name__)
def test_a_federation_of_one(selector, examples):
    counts = torch.zeros((1, CLASSES), dtype=torch.int64)
    counts[0, 2] = examples
    for _, visited, weights in cohorts(selector(), World(counts, clients_per_round=1, presence=1.0)):
        assert visited == [0]
        assert weights.tolist() == [1.0]


# FedCS takes the fastest, however alike the clients are in what they learn.
# To DivFL clients with the same gradient are one: it takes the first of them, as its documentation says.
@pytest.mark.parametrize(
    "selector", [s for s in SHIPPED if s not in (DivFL, FedCS)], ids=lambda c: c.__name__
)
def test_clients_that_are_all_alike_are_all_chosen_in_time(selector):
    """Equal losses, updates and labels leave nothing to prefer: nobody is starved."""
    counts = torch.full((6, CLASSES), 5)
    clients_per_round = 6 if selector is Complete else 3
    world = World(counts, clients_per_round=clients_per_round, presence=1.0, alike=True, rounds=30)
    # To HACCS clients with the same labels are one cluster, whose fastest it takes where latency counts.
    special = {GradientNorm: partial(GradientNorm, keep=2), HACCS: partial(HACCS, rho=0.0)}
    made = special.get(selector, selector)()
    seen = {client for _, visited, _ in cohorts(made, world, rounds=30) for client in visited}
    assert seen == set(range(6))
