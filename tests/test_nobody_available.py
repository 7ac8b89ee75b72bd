"""Rounds in which no client is available pass: the model stays, the round counts, nothing is charged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, differ_when_resumed, settings
from torch import optim

from flsel.availability import Availability, Schedule
from flsel.commands.cli import main
from flsel.config.groups import LocalConfig
from flsel.config.simulated_time import AsyncConfig, TimeConfig
from flsel.devices import LogNormal
from flsel.execution.run import run
from flsel.selectors import (
    AFL,
    F3AST,
    FedAU,
    FedCat,
    FedCor,
    FedGS,
    FedPNS,
    HiCS,
    PowD,
    Uniform,
)

CLIENTS, ROUNDS = 8, 6


@dataclass(frozen=True)
class Recorded(Availability):
    """Some rounds are empty, in others a few clients are there.

    Attributes:
        empty: Rounds without clients.
        there: Clients of the other rounds.
    """

    empty: tuple[int, ...] = (0, 2, 3, 5)
    there: int = CLIENTS

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        def schedule(rounds: np.ndarray) -> np.ndarray:
            table = np.zeros((len(rounds), len(counts)))
            table[:, : self.there] = 1.0
            table[np.isin(rounds, self.empty)] = 0.0
            return table

        return schedule


def empty_rounds(config: Any) -> tuple[list[int], Any]:
    """Run all rounds; return those that passed, after checking what a passed round leaves alone."""
    server, passed = built(config).server, []
    while not server.finished:
        before = {name: value.clone() for name, value in server.params.items()}
        ledger = dict(server.ledger)
        record = server.step()
        if not record.outcome.plan.paths:
            passed.append(record.round)
            assert all(torch.equal(before[name], server.params[name]) for name in before)
            assert {k: v for k, v in server.ledger.items() if v != ledger.get(k, 0)} == {}
            assert record.outcome.available == 0
            assert server.round == record.round + 1
    return passed, server


@pytest.mark.parametrize("selector", [
    Uniform(), PowD(d=4), AFL(), HiCS(), FedGS(), FedPNS(), FedCor(warmup=2), F3AST(), FedAU(),
    FedCat(concatenation=False),
])  # fmt: skip
def test_empty_rounds_pass_for_every_selector(selector, tmp_path):
    config = settings(tmp_path, selector=selector, availability=Recorded(), rounds=ROUNDS)
    passed, server = empty_rounds(config)
    assert passed == [0, 2, 3, 5]
    assert int(server.counts.sum()) == 2 * 3


def test_a_chain_goes_around_an_empty_hop(tmp_path):
    config = settings(tmp_path, selector=FedCat(), availability=Recorded(empty=(0, 3)), rounds=ROUNDS)
    passed, server = empty_rounds(config)
    assert passed == [0]
    assert server.round == ROUNDS


@pytest.mark.parametrize("there", [1, 2])
@pytest.mark.parametrize("selector", [Uniform(), FedGS(), HiCS(), FedCat()])
def test_fewer_clients_than_are_asked(selector, there, tmp_path):
    passed, _ = empty_rounds(settings(tmp_path, selector=selector, availability=Recorded((1,), there)))
    assert passed in ([1], [])  # a chain may have begun before


@pytest.mark.parametrize("rules", [TimeConfig(overhead=2.0), TimeConfig(over_selection=1.5, overhead=2.0)])
def test_only_overhead_passes_in_simulated_time(rules, tmp_path):
    config = settings(tmp_path, devices=LogNormal(), time=rules, availability=Recorded((0,)), rounds=1)
    server = built(config).server
    outcome = server.step().outcome
    assert outcome.time is not None
    assert tuple(outcome.time) == (2.0, 0.0, 0.0, 0.0, ())
    assert server.elapsed.seconds == 2.0


@pytest.mark.parametrize("optimizer", [partial(optim.SGD, lr=1.0, momentum=0.9), partial(optim.Adam, lr=0.1)])
def test_the_servers_optimizer_does_not_step(optimizer, tmp_path):
    passed, _ = empty_rounds(settings(tmp_path, server_optimizer=optimizer, availability=Recorded((2, 3))))
    assert passed == [2, 3]


@pytest.mark.parametrize("concurrency", [3, 6])
def test_steps_of_asynchronous_runs_pass(concurrency, tmp_path):
    config = settings(
        tmp_path, devices=LogNormal(), availability=Recorded((0, 1, 4)), rounds=8,
        asynchronous=AsyncConfig(concurrency=concurrency, buffer=3),
    )  # fmt: skip
    server, passed = built(config).server, []
    while not server.finished:
        before = {name: value.clone() for name, value in server.params.items()}
        record = server.step()
        if not record.outcome.plan.paths:
            passed.append(record.round)
            assert all(torch.equal(before[name], server.params[name]) for name in before)
    assert passed[:2] == [0, 1]
    assert server.round == 8
    assert differ_when_resumed(config, range(8)) == []


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
def test_resumed_runs_have_the_same_bits(backend, tmp_path):
    config = settings(
        tmp_path,
        availability=Recorded(),
        selector=HiCS(),
        local=LocalConfig(batch_size=5, steps=3, backend=backend),
    )
    assert differ_when_resumed(config, range(ROUNDS)) == []


def test_a_whole_run_writes_its_empty_rounds(tmp_path, monkeypatch):
    result = run(settings(tmp_path, availability=Recorded()))
    rows = [json.loads(line) for line in (result.folder / "rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows if not row["plan"]] == [0, 2, 3, 5]
    assert len(result.history["test/accuracy"]) == ROUNDS + 1
    assert result.counts.sum() == 2 * 3


def test_a_run_in_which_nobody_is_ever_there(tmp_path):
    passed, server = empty_rounds(settings(tmp_path, availability=Recorded(tuple(range(ROUNDS)))))
    assert passed == list(range(ROUNDS))
    assert server.finished


def test_data_counts_empty_rounds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("there.py").write_text(
        "from dataclasses import dataclass\n"
        "import numpy as np\n"
        "from flsel.availability import Availability\n"
        "@dataclass(frozen=True)\n"
        "class Nights(Availability):\n"
        "    def formula(self, counts, rng):\n"
        "        return lambda t: np.repeat((t % 4 != 1)[:, None], len(counts), 1).astype(float)\n"
    )
    assert main(["data", "--availability", "there.Nights", "--rounds", "20", "--clients", "8"]) == 0
    said = "no client is available in 5 of 20 rounds (1, 5, 9, 13, 17), which pass without training"
    assert said in capsys.readouterr().out
