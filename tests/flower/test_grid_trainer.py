"""A run over nodes equals the run in one process, and survives nodes that fail."""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from channels import InProcess, outcome, replaced
from runs import resumed, same, settings, started
from torch import optim

import flsel.flower.node
from flsel.availability import LN
from flsel.config.groups import LocalConfig
from flsel.config.simulated_time import AsyncConfig
from flsel.data.population import Examples, Source
from flsel.data.sources import load_source
from flsel.devices import LogNormal
from flsel.errors import UserError
from flsel.execution.run import execute, run
from flsel.flower.grid_trainer import GridTrainer
from flsel.flower.node import Node, clients_of
from flsel.flower.node_log import NodeLog
from flsel.flower.wire import LostError, Reply, Request
from flsel.local.completeness import PDU
from flsel.objectives import SCAFFOLD, FedProx
from flsel.partition import IID
from flsel.runner.build import build
from flsel.runner.result import Result
from flsel.selectors import (
    AFL,
    F3AST,
    OSMD,
    DivFL,
    FedCat,
    FedCor,
    FedGS,
    FedPNS,
    HiCS,
    KVib,
    Oort,
    PowD,
    Uniform,
)
from flsel.updates import Median, TopK

SEQUENTIAL = LocalConfig(batch_size=5, steps=3, backend="sequential")


def deployed(config: Any, channel: InProcess) -> Result:
    return execute(started(config, trainer=GridTrainer(channel, config, config.clients, timeout=1.0)))


@pytest.mark.parametrize(
    "selector",
    [Uniform(), PowD(d=5), FedCor(), FedCat(), FedGS(), HiCS(), AFL(), DivFL(), FedPNS(), Oort(penalty=0.0)],
    ids=lambda selector: type(selector).__name__,
)
def test_a_run_over_nodes_equals_the_run_in_one_process(tmp_path: Path, selector: Any) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, selector=selector, availability=LN(0.5))
    config = replace(config, data=replace(config.data, server=0.1))
    run(replace(config, output=replace(config.output, name="here")))
    channel = InProcess(config, 3)
    deployed(config, channel)
    assert same(outcome(tmp_path / "run"), outcome(tmp_path / "here"))
    assert {request.action for request in channel.sent} >= {"hello", "visits"}


def test_a_resumed_deployment_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    own = {"objective": FedProx(0.1), "selector": FedCor(), "completeness": PDU(p=0.7)}
    config = settings(tmp_path, local=SEQUENTIAL, **own)
    run(replace(config, output=replace(config.output, name="here")))

    def make() -> GridTrainer:
        return GridTrainer(InProcess(config, 2), config, 8, timeout=1.0)

    with started(config, trainer=make()) as session:
        session.step()
        session.save()
    execute(resumed(tmp_path / "run", trainer=make()))
    assert same(outcome(tmp_path / "run"), outcome(tmp_path / "here"))


def _lost(request: Request, reply: Reply) -> Reply | None:
    return None if request.node == 1000 and request.action == "visits" else reply


def _not_finite(request: Request, reply: Reply) -> Reply | None:
    bad = request.node == 1000 and request.action == "visits"
    return replaced(reply, lambda m: {n: np.full_like(v, np.nan) for n, v in m.items()}) if bad else reply


def _too_large(request: Request, reply: Reply) -> Reply | None:
    bad = request.node == 1000
    return replaced(reply, lambda m: {n: np.zeros((9, *v.shape)) for n, v in m.items()}) if bad else reply


def _too_many(request: Request, reply: Reply) -> Reply | None:
    bad = request.node == 1000
    return replaced(reply, lambda m: {**m, "more": np.zeros(10**6)}) if bad else reply


@pytest.mark.parametrize("fault", [_lost, _not_finite, _too_large, _too_many])
def test_what_a_node_does_not_answer_is_dropped_and_counted(
    tmp_path: Path, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, clients_per_round=6)
    with caplog.at_level(logging.WARNING, "flsel"):
        result = deployed(config, InProcess(config, 2, fault))
    asked = [sum(path[0] % 2 == 0 for path in step.plan) for step in result.rounds]
    assert result.summary["dropped_updates"] == sum(asked) > 0
    said = [record.getMessage() for record in caplog.records if "node 1000 gave no answer" in record.message]
    if fault is _not_finite:
        assert said == []
        return
    # The node is left out for one round after its second failure, and for two after its third.
    assert [count > 0 for count in asked] == [True, True, False, True, False, False]
    assert [text.endswith("it is left out for 2 rounds") for text in said] == [False, False, True]


@pytest.mark.parametrize("selector", [KVib, OSMD, F3AST])
def test_the_others_take_over_the_weight_of_updates_that_are_lost(tmp_path: Path, selector: Any) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, clients_per_round=6, selector=selector())
    here = build(config).server.step().outcome
    trainer = GridTrainer(InProcess(config, 2, _lost), config, 8, timeout=1.0)
    with started(config, trainer=trainer) as session:
        there = session.step().outcome
    assert there.plan == here.plan
    lost = torch.tensor([path[0] % 2 == 0 for path in here.plan.paths])
    assert 0 < int(lost.sum()) < len(lost)
    own = here.weights[~lost]
    torch.testing.assert_close(there.weights[~lost], own * (len(lost) / len(own)))
    assert not there.weights[lost].any()


def test_a_round_that_nobody_answers_says_so_and_can_be_resumed(tmp_path: Path) -> None:
    config = settings(tmp_path, local=SEQUENTIAL)

    def fault(request: Request, reply: Reply) -> Reply | None:
        return None if 1 in request.values["rounds"] else reply  # type: ignore[operator]

    with pytest.raises(UserError, match=r"round 1 failed: no node that was asked answered within 1 s"):
        deployed(config, InProcess(config, 1, fault))
    assert (tmp_path / "run/checkpoints/last.ckpt").exists()


def test_a_round_passes_if_those_that_were_asked_do_not_answer(tmp_path: Path) -> None:
    momentum = partial(optim.SGD, lr=1.0, momentum=0.9)
    config = settings(tmp_path, local=SEQUENTIAL, clients_per_round=1, server_optimizer=momentum)

    def fault(request: Request, reply: Reply) -> Reply | None:
        return None if 2 in request.values["rounds"] else reply  # type: ignore[operator]

    models, dropped = [], []
    trainer = GridTrainer(InProcess(config, 4, fault), config, 8, timeout=1.0)
    with started(config, trainer=trainer) as session:
        while not session.server.finished:
            dropped.append(session.step().outcome.dropped)
            models.append({name: value.clone() for name, value in session.server.params.items()})
    assert [len(clients) for clients in dropped] == [0, 0, 1, 0, 0, 0]
    same = [all(torch.equal(a[n], b[n]) for n in a) for a, b in itertools.pairwise(models)]
    assert same == [False, True, False, False, False]


def test_a_round_passes_if_nobody_who_is_available_is_connected(tmp_path: Path) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, clients_per_round=1, rounds=3)
    channel = InProcess(config, 8)
    trainer = GridTrainer(channel, config, 8, timeout=0.0)
    with started(config, trainer=trainer) as session:
        for node in list(channel.parts)[1:]:
            del channel.parts[node]
        everybody = session.server.federation.available
        away = torch.ones(8, dtype=torch.bool).index_fill(0, torch.tensor([0]), False)
        object.__setattr__(session.server.federation, "available", lambda round: everybody(round) & away)
        steps = [session.step().outcome for _ in range(3)]
    assert [(len(step.plan), step.available) for step in steps] == [(0, 0)] * 3
    assert session.server.round == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"objective": SCAFFOLD()}, "objective must be FedAvg or FedProx in a deployment, got SCAFFOLD"),
        ({"updates": (TopK(),)}, "updates must be empty in a deployment"),
        ({"aggregate": Median()}, "aggregate must be Mean in a deployment, got Median"),
        ({"local": replace(SEQUENTIAL, keep_optimizer=True)}, r"local\.keep_optimizer must be false"),
        (
            {"devices": LogNormal(), "asynchronous": AsyncConfig(4)},
            r"asynchronous\.concurrency must be null in a deployment",
        ),
    ],
)
def test_what_cannot_be_deployed_is_refused(tmp_path: Path, changes: Any, reason: str) -> None:
    config = settings(tmp_path, **changes)
    with pytest.raises(UserError, match=reason):
        deployed(config, InProcess(config, 2))


def test_a_node_with_other_settings_or_another_version_is_refused(tmp_path: Path) -> None:
    config = settings(tmp_path, local=SEQUENTIAL)
    channel = InProcess(replace(config, seed=5), 2)
    with pytest.raises(UserError, match=r"node 1000 cannot take part: .* the server's settings, got others"):
        deployed(config, channel)
    reply = Node(config, 0, 1).answer("hello", {}, {"version": "0.0.1"})
    assert reply.error.startswith("the node must have flsel 0.0.1 like the server")


@pytest.mark.parametrize("values", [{"something": 1}, {"partition": 0, "partitions": 0}, {}])
def test_a_node_of_another_app_is_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    config = settings(tmp_path, local=SEQUENTIAL)
    channel = InProcess(config, 2)
    channel.parts[1000] = SimpleNamespace(answer=lambda *asked: Reply(values=values))
    with pytest.raises(UserError, match=r"node 1000 cannot take part: .* names no partition"):
        deployed(config, channel)


def test_every_client_has_one_node(tmp_path: Path) -> None:
    config = settings(tmp_path, local=SEQUENTIAL)
    channel = InProcess(config, 3)
    del channel.parts[1007]
    with pytest.raises(UserError, match="every client needs a node: 3 of 8 have none, client 1 first"):
        deployed(config, channel)
    channel.parts |= {1: Node(config, 1, 3), 2: Node(config, 1, 3)}
    with pytest.raises(UserError, match="both have client 1"):
        deployed(config, channel)
    assert [clients_of(part, 3, 8) for part in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_a_node_answers_for_its_own_clients_only(tmp_path: Path) -> None:
    config = settings(tmp_path, local=SEQUENTIAL)
    channel = InProcess(config, 2)
    deployed(config, channel)
    request = next(request for request in channel.sent if request.action == "visits")
    values = {**request.values, "clients": [0, 1], "rounds": [0, 0], "starts": [0, 0]}
    reply = channel.parts[1000].answer("visits", request.models, values)
    assert "the node has the clients [0, 2, 4, 6], and was asked for [0, 1]" in reply.error


def test_clients_of_nodes_that_are_not_connected_are_not_available(tmp_path: Path) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, clients_per_round=8, rounds=4)
    channel = InProcess(config, 2)
    trainer = GridTrainer(channel, config, 8, timeout=0.0)
    planned = []
    with started(config, trainer=trainer) as session:
        for round in range(4):
            if round == 1:
                gone = channel.parts.pop(1007)
            if round == 3:
                channel.parts[5] = gone  # another id, as Flower gives a node that registers again
            planned.append(sorted(path[0] for path in session.step().outcome.plan.paths))
        channel.parts.clear()
        with pytest.raises(LostError, match="no node is connected for 0 s"):
            session.step()
    assert planned == [[*range(8)], [0, 2, 4, 6], [0, 2, 4, 6], [*range(8)]]
    assert trainer.homes == {client: 5 if client % 2 else 1000 for client in range(8)}


def test_what_nodes_did_is_written_down_and_measured(tmp_path: Path) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, clients_per_round=6, rounds=2)
    trainer = GridTrainer(InProcess(config, 2, _lost), config, 8, timeout=1.0)
    execute(started(config, trainer=trainer, callbacks=(NodeLog(trainer),)))
    rows = [json.loads(line) for line in (tmp_path / "run/nodes.jsonl").read_text().splitlines()]
    assert {(row["round"], row["node"], row["action"]) for row in rows} == {
        (round, node, "visits") for round in (0, 1) for node in (1000, 1007)
    }
    assert {row["error"] for row in rows if row["node"] == 1000} == {"no answer within 1 s"}
    header, *values = (tmp_path / "run/metrics.csv").read_text().splitlines()
    found = dict(zip(header.split(","), map(float, values[-1].split(",")), strict=True))
    assert (found["nodes/asked"], found["nodes/lost"], found["nodes/answered"]) == (2, 1, 1)


def _shard_of(config: Any, client: int) -> Source:
    """The dataset of a node that has the examples of one client, and no others."""
    population = build(config).data.population
    shard = population.shards[client]
    source = load_source(config.data, clients=8, seed=config.seed)
    return replace(source, train=Examples(population.x[shard], population.y[shard]), owner=None)


def test_nodes_with_their_own_data_train_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, selector=FedCor(), availability=LN(0.5), partition=IID())
    run(replace(config, output=replace(config.output, name="here")))
    shards = {client: _shard_of(config, client) for client in range(8)}
    channel = InProcess(config, 8)
    channel.parts = {
        1000 + client: OwnNode(config, client, 8, shards[client], monkeypatch) for client in range(8)
    }
    trainer = GridTrainer(channel, config, 8, timeout=1.0, own_data=True)
    execute(started(config, trainer=trainer))
    assert same(outcome(tmp_path / "run"), outcome(tmp_path / "here"))
    start = next(request for request in channel.sent if request.action == "visits")
    assert all(len(value.tobytes()) < 10**4 for value in start.models["start0"].values())


class OwnNode:
    """A node that finds a dataset of its own where the settings say."""

    def __init__(self, config: Any, part: int, parts: int, source: Source, patch: Any) -> None:
        self.node, self.source, self.patch = Node(config, part, parts, own_data=True), source, patch

    def answer(self, *asked: Any) -> Reply:
        with self.patch.context() as there:
            there.setattr(flsel.flower.node, "load_source", lambda *a, **k: self.source)
            return self.node.answer(*asked)


def test_own_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    config = settings(tmp_path, local=SEQUENTIAL)
    channel = InProcess(config, 3)
    channel.parts = {1: Node(config, 0, 3, own_data=True)}
    with pytest.raises(UserError, match=r"num-partitions must be the number of clients .* got 3 of 8"):
        GridTrainer(channel, config, 8, own_data=True)
    measured = replace(config, evaluation=replace(config.evaluation, per_client=True))
    with pytest.raises(UserError, match=r"evaluation\.per_client must be false where nodes have their own"):
        GridTrainer(channel, measured, 8, own_data=True)
