"""Paths of several hops, with idle ones: what is trained, what it costs, what is averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import built, left_behind, run_round, settings, trained
from torch import Tensor

from flsel.availability import LN
from flsel.config.groups import LocalConfig
from flsel.execution.run import run
from flsel.local.visit import from_one
from flsel.params import model_bytes
from flsel.selector import IDLE, Need, Plan, Selector, Updates, View
from flsel.selectors.fedcat import FedCat

PATHS = ((IDLE, 2, 0), (2, IDLE, IDLE), (3, 1, IDLE), (2, IDLE, 5))


class Idling(Selector):
    """Selects given paths and keeps what came of them."""

    needs = Need.OWN_LOSS | Need.DELTAS

    def __init__(self, paths: Any = PATHS) -> None:
        self.paths = paths

    def select(self, view: View) -> Plan:
        return Plan(tuple(tuple(path) for path in self.paths))

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        self.seen = (view, updates, weights)


def test_visits_leave_idle_hops_out() -> None:
    assert Plan(PATHS).visits == ((2, 0), (2,), (3, 1), (2, 5))
    assert Plan.star([3, 1]).visits == ((3,), (1,))


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
def test_an_idle_copy_stays_as_it_is(tmp_path: Path, backend: Any) -> None:
    config = settings(
        tmp_path,
        clients_per_round=4,
        selector=Idling(),
        precision="64-true",
        local=LocalConfig(batch_size=5, steps=3, backend=backend),
    )
    federation = (made := built(config)).server.federation
    params = made.server.params
    before = {name: value.clone() for name, value in params.items()}
    outcome = run_round(made.server)
    _, updates, weights = made.server.selector.seen

    sizes = federation.sizes
    assert updates.sizes.tolist() == [int(sizes[list(visits)].sum()) for visits in Plan(PATHS).visits]
    assert updates.steps.tolist() == [6, 3, 6, 6]
    assert updates.clients.tolist() == [2, 2, 3, 2]
    asked = federation.trainer.losses(from_one(params, [2, 2, 3, 2], 0, federation.program))
    torch.testing.assert_close(updates.own_loss, asked)
    torch.testing.assert_close(weights, updates.sizes.double() / updates.sizes.sum())
    for row, path in enumerate(PATHS):
        stack = {name: value[None] for name, value in params.items()}
        for hop, client in enumerate(path):
            if client != IDLE:
                stack = trained(federation, stack, [client], hop)
        for name, deltas in updates.deltas.items():
            torch.testing.assert_close(deltas[row], stack[name][0] - params[name], atol=1e-12, rtol=0)
    # Hop 0: clients 2 (once, though two copies wait for it) and 3; hop 1: 2 and 1; hop 2: 0 and 5.
    assert outcome.ledger["trainings"] == outcome.ledger["models_up"] == outcome.ledger["models_down"] == 6
    assert outcome.ledger["bytes_up"] == 6 * model_bytes(params)
    assert outcome.dropped == ()
    assert all(torch.equal(before[name], value) for name, value in params.items())


def test_a_hop_at_which_all_idle_only_passes(tmp_path: Path) -> None:
    made = built(settings(tmp_path, selector=Idling(((0, IDLE, 1), (2, IDLE, IDLE)))))
    record = made.server.step()
    assert record.completed == 3
    assert record.outcome.ledger["trainings"] == 3
    assert made.server.counts.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


def test_a_diverged_path_names_the_last_client_that_it_visited(tmp_path: Path) -> None:
    made = built(settings(tmp_path, selector=Idling(((0, 4, IDLE), (1, IDLE, 2)))))
    made.data.population.x[made.data.population.shards[4]] = torch.nan
    assert made.server.step().outcome.dropped == (4,)


def test_a_run_with_idle_hops_writes_its_files(tmp_path: Path) -> None:
    result = run(settings(tmp_path, clients_per_round=4, rounds=6, selector=Idling()))
    plans = left_behind(tmp_path / "run")["plans"]
    assert [row["round"] for row in plans] == [0, 3]
    assert plans[0]["plan"] == [list(path) for path in PATHS]
    assert result.final["ledger/trainings"] == 12


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
def test_fedcat_is_copies_trained_by_hand(tmp_path: Path, backend: Any) -> None:
    """Two cycles and a cut one under changing availability, against copies trained by hand."""
    config = settings(
        tmp_path,
        rounds=8,
        selector=FedCat(lam=1, epsilon=0.5),
        availability=LN(0.6),
        precision="64-true",
        local=LocalConfig(batch_size=5, steps=3, backend=backend),
    )
    server = built(config).server
    sizes = server.federation.sizes
    glb = {name: value.clone() for name, value in server.params.items()}
    rounds = []
    while not server.finished:
        record = server.step()
        rounds.append(record.completed)
        total, weight = {name: torch.zeros_like(value) for name, value in glb.items()}, 0
        for path in record.outcome.plan.paths:
            copy, seen = {name: value[None] for name, value in glb.items()}, 0
            for hop, device in enumerate(path):
                if device != IDLE:
                    copy = trained(server.federation, copy, [device], record.round + hop)
                    seen += int(sizes[device])
            weight += seen
            for name, value in total.items():
                value += seen * copy[name][0].detach()
        glb = {name: value / weight for name, value in total.items()}
        for name, value in server.params.items():
            torch.testing.assert_close(value.data, glb[name], atol=1e-10, rtol=0)
    assert rounds == [3, 6, 8]
