"""FedGS and DivFL in whole runs: what they learn of real clients, and what the ledger says it cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, settings

from flsel.availability import LN
from flsel.errors import UserError
from flsel.local.visit import from_one
from flsel.partition import IID
from flsel.selectors.divfl import DivFL
from flsel.selectors.fedgs import FedGS
from flsel.selectors.gradnorm import GradientNorm

ASKED = {"cosine": 8, "functional": 8, "optimal": 8, "labels": 0, "secure": 0, "true_models": 0}


@pytest.mark.parametrize("signal", ["gradient", "update"])
@pytest.mark.parametrize("mode", ["ideal", "no_overhead"])
def test_divfl_learns_everybody_and_pays_for_it(tmp_path: Path, mode: Any, signal: Any) -> None:
    run = built(settings(tmp_path, selector=DivFL(mode, signal)))
    for _ in range(2):
        run.server.step()
    ledger, selector = run.server.ledger, run.server.selector
    assert isinstance(selector, DivFL)
    assert selector.known_.all()
    assert selector.distance_.isfinite().all()
    asked = 2 * 8 if mode == "ideal" else 8 + (2 * 3 if signal == "gradient" else 0)
    assert ledger["models_up"] == asked + 2 * 3
    assert ledger["passes"] == (asked if signal == "gradient" else 0)
    assert ledger["shadow_trainings"] == (0 if signal == "gradient" else asked)


def test_divfl_keeps_the_gradients_of_participants_at_the_model_they_received(tmp_path: Path) -> None:
    run = built(settings(tmp_path, selector=DivFL("no_overhead"), precision="64-true"))
    server = run.server
    server.step()
    before = {name: value.clone() for name, value in server.params.items()}
    record = server.step()
    assert isinstance(server.selector, DivFL)
    clients = [path[0] for path in record.outcome.plan.paths]
    expected = server.federation.trainer.gradients(from_one(before, clients, 1, run.program))
    flat = torch.cat([value.flatten(1) for value in expected.values()], dim=1)
    torch.testing.assert_close(server.selector.row_[clients], flat, atol=0, rtol=0)


@pytest.mark.parametrize("graph", ASKED)
def test_fedgs_builds_its_graph_in_the_first_round(tmp_path: Path, graph: str) -> None:
    run = built(settings(tmp_path, selector=FedGS(graph=graph)))
    server = run.server
    server.step()
    assert isinstance(server.selector, FedGS)
    h = server.selector.graph_.numpy()
    assert h.shape == (8, 8)
    assert h.max() == pytest.approx(1.0)
    np.testing.assert_array_equal(h, h.T)
    assert server.selector.feature_.numel() == 0
    server.step()
    assert torch.equal(torch.from_numpy(h), server.selector.graph_)
    assert server.ledger["shadow_trainings"] == ASKED[graph]
    assert server.ledger["server_passes"] == (8 if graph == "functional" else 0)
    assert server.selector.count_.sum() == 6


def test_fedgs_extends_its_graph_as_clients_come_along(tmp_path: Path) -> None:
    run = built(settings(tmp_path, selector=FedGS(graph="cosine"), availability=LN(0.7), rounds=6))
    server, seen = run.server, torch.zeros(8, dtype=torch.bool)
    for round in range(6):
        seen |= server.federation.available(round)
        server.step()
        assert isinstance(server.selector, FedGS)
        assert torch.equal(server.selector.asked_, seen)
        assert server.ledger["shadow_trainings"] == int(seen.sum())
        assert server.selector.graph_.isfinite().all()


def test_updates_tell_how_far_momentum_carries_each_client(tmp_path: Path) -> None:
    run = built(settings(tmp_path, selector=GradientNorm()))
    seen: list[Any] = []
    weigh = GradientNorm.weigh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientNorm, "weigh", lambda *args: seen.append(args[2]) or weigh(*args))
        run.server.step()
    (updates,) = seen
    # Momentum 0.9: 1, 1.9, 2.71, ... in the first, second, third step.
    expected = [sum(10 * (1 - 0.9**k) for k in range(1, n + 1)) for n in updates.steps.tolist()]
    assert updates.travel.tolist() == pytest.approx(expected)
    assert (updates.travel > updates.steps).all()


def test_true_models_are_those_of_the_generator_and_of_no_other_data(tmp_path: Path) -> None:
    run = built(settings(tmp_path, selector=FedGS(graph="true_models")))
    population = run.server.federation.data.population
    assert population.true_models is not None
    w = population.true_models()
    products = w @ w.T
    run.server.step()
    assert isinstance(run.server.selector, FedGS)
    pairs = np.triu_indices(8, k=1)
    # The longer the distance, the smaller the inner product of W and b.
    nearest = run.server.selector.graph_.numpy()[pairs].argmin()
    assert products[pairs].argmax() == nearest
    dealt = built(settings(tmp_path, selector=FedGS(graph="true_models"), partition=IID()))
    with pytest.raises(UserError, match="true models, which only generated data with natural clients have"):
        dealt.server.step()
