"""FedDyn, MOON and SCAFFOLD against their papers' algorithms, written out by hand on the same batches."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_objectives import BATCH, LR, STEPS, Net, PaperFedDyn, PaperMOON, PaperSCAFFOLD
from runs import built, differ_when_resumed, run_round, same, settings
from torch import Tensor, nn, optim

from flsel.availability import IDL, LN
from flsel.config import RunConfig
from flsel.config.groups import LocalConfig
from flsel.errors import UserError
from flsel.objectives import MOON, SCAFFOLD, FedAvg, FedDyn, FedProx, Objective
from flsel.selector import Need, Plan, Selector, Updates, View
from flsel.selectors.fedcat import FedCat
from flsel.selectors.md import MD
from flsel.selectors.uniform import Uniform


def config(folder: Path, objective: Objective, backend: Any = "compiled", **changes: Any) -> RunConfig:
    base = settings(
        folder,
        objective=objective,
        selector=Uniform(weights="equal"),
        model=Net,
        precision="64-true",
        local=LocalConfig(
            batch_size=BATCH, steps=STEPS, optimizer=partial(optim.SGD, lr=LR), backend=backend
        ),
        availability=LN(0.5),
    )
    return replace(base, **changes)


PAPERS: dict[str, tuple[Objective, Any]] = {
    "feddyn": (FedDyn(alpha=0.3), partial(PaperFedDyn, alpha=0.3)),
    "scaffold": (SCAFFOLD(), PaperSCAFFOLD),
    "moon": (MOON(mu=5.0, temperature=0.4), partial(PaperMOON, mu=5.0, tau=0.4)),
}


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
@pytest.mark.parametrize("name", PAPERS)
def test_rounds_are_the_papers(tmp_path: Path, name: str, backend: Any) -> None:
    objective, make = PAPERS[name]
    run = built(config(tmp_path, objective, backend))
    server = run.server
    glb = [value.detach().clone() for value in server.params.values()]
    paper = make(glb, len(run.data.population))
    seen: list[int] = []
    while not server.finished:
        plan = server.step().outcome.plan
        cohort = [path[0] for path in plan.paths]
        glb = paper.round(run, server.round - 1, glb, cohort)
        for ours, theirs in zip(server.params.values(), glb, strict=True):
            torch.testing.assert_close(ours.data, theirs, atol=1e-10, rtol=0)
        seen += cohort
    assert len(set(seen)) < len(seen), "nobody came twice, so no state was used"


@pytest.mark.parametrize("name", PAPERS)
def test_the_objective_matters(tmp_path: Path, name: str) -> None:
    ends = []
    for objective in (PAPERS[name][0], FedAvg()):
        server = built(config(tmp_path, objective)).server
        while not server.finished:
            server.step()
        ends.append(server.params)
    assert max(float((ends[0][n] - ends[1][n]).detach().abs().max()) for n in ends[0]) > 1e-3


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
@pytest.mark.parametrize("name", PAPERS)
def test_the_server_resumes_at_every_round(tmp_path: Path, name: str, backend: Any) -> None:
    settings = config(tmp_path, PAPERS[name][0], backend, rounds=4, clients_per_round=5)
    assert differ_when_resumed(settings, range(settings.rounds)) == []


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
def test_moon_without_weight_is_fedavg(tmp_path: Path, backend: Any) -> None:
    servers = [built(config(tmp_path, o, backend)).server for o in (MOON(mu=0.0), FedAvg())]
    while not servers[0].finished:
        for server in servers:
            server.step()
    for name, value in servers[0].params.items():
        torch.testing.assert_close(value.data, servers[1].params[name].data, atol=1e-12, rtol=0)


def test_feddyn_with_a_tiny_alpha_trains_clients_as_fedavg(tmp_path: Path) -> None:
    """Only the clients: the server's correction is the mean of all past updates, whatever α."""
    dyn = built(config(tmp_path, FedDyn(alpha=1e-13))).server
    past = {name: torch.zeros_like(value) for name, value in dyn.params.items()}
    clients = len(dyn.federation.sizes)
    for _ in range(4):
        plain = built(config(tmp_path, FedAvg(), selector=Everything())).server
        for name, value in dyn.params.items():
            plain.params[name].copy_(value)
        before = {name: value.detach().clone() for name, value in dyn.params.items()}
        outcome = dyn.step().outcome
        plain.selector.paths = outcome.plan.paths
        run_round(plain, dyn.round - 1)
        for name, deltas in plain.selector.deltas.items():
            past[name] += deltas.sum(dim=0) / clients
            expected = before[name] + deltas.mean(dim=0) + past[name]
            torch.testing.assert_close(dyn.params[name].data, expected, atol=1e-10, rtol=0)


class Everything(Selector):
    """Selects given paths and keeps the updates."""

    needs = Need.DELTAS

    def __init__(self) -> None:
        self.paths: Any = ()

    def select(self, view: View) -> Plan:
        return Plan(self.paths)

    def observe(self, view: View, updates: Any, weights: Tensor) -> None:
        self.deltas = updates.deltas


@pytest.mark.parametrize("name", ["feddyn", "scaffold"])
def test_the_servers_variate_is_the_mean_of_the_clients(tmp_path: Path, name: str) -> None:
    server = built(config(tmp_path, PAPERS[name][0])).server
    while not server.finished:
        server.step()
    state = server.objective.state_dict()
    rows, mean_ = ("drift_", "mean_drift_") if name == "feddyn" else ("controls_", "control_")
    for key, value in state[mean_].items():
        assert bool(value.any())
        torch.testing.assert_close(value, state[rows][key][state["slots_"]].mean(dim=0), atol=1e-12, rtol=0)
    took_part = server.counts > 0
    assert torch.equal(state["slots_"] > 0, took_part)
    assert not bool(took_part.all())


@pytest.mark.parametrize("name", PAPERS)
def test_a_client_drawn_twice_counts_once_in_the_state(tmp_path: Path, name: str) -> None:
    objective = PAPERS[name][0]
    settings = config(tmp_path, objective, selector=Everything(), availability=IDL())
    twice, once = built(settings).server, built(settings).server
    twice.selector.paths, once.selector.paths = ((2,), (5,), (2,)), ((2,), (5,))
    assert twice.step().outcome.plan.paths == ((2,), (5,), (2,))
    once.step()
    assert same(twice.objective.state_dict(), once.objective.state_dict())
    assert built(config(tmp_path, objective, selector=MD(), rounds=2)).server.step().completed == 1


class Rehearsing(Uniform):
    """Trains two clients beside the cohort, as a rehearsal does."""

    needs = Need.SHADOW

    def select(self, view: View) -> Plan:
        view.shadow(view.pool[:2].tolist())
        return super().select(view)


@pytest.mark.parametrize("name", PAPERS)
def test_rehearsals_leave_no_trace_but_in_the_ledger(tmp_path: Path, name: str) -> None:
    selectors = Uniform("equal"), Rehearsing("equal")
    plain, rehearsing = (built(config(tmp_path, PAPERS[name][0], selector=s)).server for s in selectors)
    while not plain.finished:
        plain.step()
        rehearsing.step()
    assert same(plain.objective.state_dict(), rehearsing.objective.state_dict())
    messages = 2 if name == "scaffold" else 1
    trained = plain.ledger["trainings"]
    assert plain.ledger["models_up"] == plain.ledger["models_down"] == messages * trained
    assert rehearsing.ledger["models_up"] == messages * trained + 2 * plain.round
    assert rehearsing.ledger["models_down"] == messages * (trained + 2 * plain.round)


class Fragile(Net):
    """A network whose loss is not finite on inputs that are huge."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.where(x.abs().sum(dim=1, keepdim=True) > 1e6, torch.inf * x, x))


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
@pytest.mark.parametrize("name", PAPERS)
def test_dropped_updates_leave_the_state_clean(tmp_path: Path, name: str, backend: Any) -> None:
    run = built(config(tmp_path, PAPERS[name][0], backend, model=Fragile, clients_per_round=6))
    run.data.population.x[run.data.population.shards[3]] = 1e7
    server = run.server
    while not server.finished:
        server.step()
    assert server.ledger["dropped_updates"] > 0
    state = server.objective.state_dict()
    assert int(state["slots_"][3]) == 0
    tables = [value for value in state.values() if isinstance(value, dict)]
    assert all(bool(rows.isfinite().all()) for table in tables for rows in table.values())
    assert all(bool(value.isfinite().all()) for value in server.params.values())


class Normed(nn.Sequential):
    """A network with running statistics, which the server averages as they are."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        assert num_classes is not None
        assert input_shape is not None
        super().__init__(nn.Linear(input_shape[0], 5), nn.BatchNorm1d(5), nn.Linear(5, num_classes))


@pytest.mark.parametrize("name", PAPERS)
def test_running_statistics_are_averaged_plainly(tmp_path: Path, name: str) -> None:
    local = LocalConfig(batch_size=BATCH, steps=STEPS, last_batch="wrap")
    changes: dict[str, Any] = {
        "model": Normed,
        "local": local,
        "selector": Everything(),
        "availability": IDL(),
    }
    server = built(config(tmp_path, PAPERS[name][0], **changes)).server
    server.selector.paths = ((2,), (5,), (6,))
    for _ in range(3):
        before = server.params["1.running_mean"].detach().clone()
        outcome = server.step().outcome
        expected = torch.tensordot(outcome.weights, server.selector.deltas["1.running_mean"], dims=1)
        torch.testing.assert_close(server.params["1.running_mean"].data - before, expected)
    tables = [value for value in server.objective.state_dict().values() if isinstance(value, dict)]
    kept = {key for table in tables for key in table}
    # Only MOON runs the old model again, and needs its statistics.
    assert ("1.running_var" in kept) == (name == "moon")


class Heavy(Everything):
    """Weighs updates by more than one."""

    def weigh(self, view: View, updates: Updates) -> Tensor:
        return torch.tensor([1.5, 0.5, 1.0], dtype=torch.float64)


def test_weights_above_one_leave_running_statistics_a_mean(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"local": LocalConfig(batch_size=BATCH, steps=STEPS, last_batch="wrap")}
    changes |= {"model": Normed, "selector": Heavy(), "availability": IDL()}
    server = built(config(tmp_path, FedAvg(), **changes)).server
    server.selector.paths = ((2,), (5,), (6,))
    before = server.params["1.running_var"].detach().clone()
    server.step()
    mean = torch.tensor([1.5, 0.5, 1.0], dtype=torch.float64) / 3
    expected = torch.tensordot(mean, server.selector.deltas["1.running_var"], dims=1)
    torch.testing.assert_close(server.params["1.running_var"].data - before, expected)


def test_scaffold_refuses_other_optimizers_before_anything_is_trained(tmp_path: Path) -> None:
    local = LocalConfig(batch_size=BATCH, steps=STEPS, optimizer=partial(optim.Adam, lr=0.1))
    with pytest.raises(UserError, match=r"must be torch.optim.SGD for this objective, got Adam"):
        built(config(tmp_path, SCAFFOLD(), local=local))
    built(config(tmp_path, FedDyn(), local=local)).server.step()


@pytest.mark.parametrize("name", PAPERS)
def test_chained_clients_are_refused(tmp_path: Path, name: str) -> None:
    kind = type(PAPERS[name][0]).__name__
    server = built(config(tmp_path, PAPERS[name][0], selector=FedCat())).server
    with pytest.raises(UserError, match=rf"objective {kind} keeps state .*; FedCat chains 3 of them"):
        server.step()
    built(config(tmp_path, FedProx(0.1), selector=FedCat())).server.step()
    built(config(tmp_path, PAPERS[name][0], selector=FedCat(concatenation=False))).server.step()


def test_scaffold_skips_rounds_without_a_step(tmp_path: Path) -> None:
    """A learning rate of zero and a client without examples give no gradient to learn from."""
    frozen = partial(optim.lr_scheduler.LambdaLR, lr_lambda=lambda round: float(round > 0))
    settings = config(tmp_path, SCAFFOLD(), availability=LN(0.0))
    run = built(replace(settings, local=replace(settings.local, lr_schedule=frozen)))
    run.server.step()
    assert not bool(run.server.objective.slots_.any())
    run.server.step()
    assert bool(run.server.objective.slots_.any())
    assert all(math.isfinite(float(value.detach().abs().sum())) for value in run.server.params.values())
