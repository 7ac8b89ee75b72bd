"""Runs by a record: the clock decides who is there, the server waits, and clients drop out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, differ_when_resumed, run_round, settings

from flsel.availability import Intervals
from flsel.commands.cli import main
from flsel.config.groups import LocalConfig
from flsel.config.simulated_time import AsyncConfig, TimeConfig
from flsel.devices import Devices, Table
from flsel.errors import UserError
from flsel.selector import Plan, View
from flsel.selectors import Uniform

# Ten steps of five examples, each three passes: client k trains for k + 1 seconds.
LOCAL = LocalConfig(batch_size=5, steps=10, last_batch="wrap")


class Slower(Devices):
    """Client k trains for k + 1 seconds."""

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        return Table(np.arange(1, len(sizes) + 1) / 150, down=1e12, up=1e12)


class Everybody(Uniform):
    def select(self, view: View) -> Plan:
        return Plan.star(view.pool[: view.clients_per_round])

    def observe(self, view: Any, updates: Any, weights: Any) -> None:
        self.saw = updates


def recorded(folder: Path, *rows: str, unit: Any = "seconds", **changes: Any) -> Any:
    path = folder / "record.csv"
    path.write_text("\n".join(("client,from,to", *rows, *(f"{k},900,900" for k in range(8)), "7,999,1000\n")))
    given: dict[str, Any] = {"selector": Everybody(), "devices": Slower(), "local": LOCAL}
    given["availability"] = Intervals(str(path), unit=unit)
    return settings(folder, **{**given, **changes})


def test_the_server_waits_for_the_first_client(tmp_path: Path) -> None:
    server = built(recorded(tmp_path, "0,5,50", "1,6.5,50")).server
    first = server.step().outcome
    assert [path[0] for path in first.plan.paths] == [0]
    assert server.elapsed.seconds == pytest.approx(6.0)
    second, third = server.step().outcome, server.step().outcome
    assert [path[0] for path in second.plan.paths] == [0]
    assert [path[0] for path in third.plan.paths] == [0, 1]
    assert server.elapsed.seconds == pytest.approx(9.0)


def test_clients_drop_out_in_the_middle_of_a_round(tmp_path: Path) -> None:
    server = built(recorded(tmp_path, "0,0,50", "1,0,1.25", "2,0,50")).server
    before = {name: value.data.clone() for name, value in server.params.items()}
    outcome = server.step().outcome
    assert [path[0] for path in outcome.plan.paths] == [0, 2]
    assert outcome.time is not None
    assert outcome.time.late == (1,)
    assert outcome.time.seconds == pytest.approx(3.0)
    assert outcome.time.client_seconds == pytest.approx(1 + 1.25 + 3)
    assert outcome.time.wasted == pytest.approx(1.25)
    assert (server.ledger["trainings"], server.ledger["models_up"]) == (3, 2)
    assert server.selector.saw.late.clients.tolist() == [1]
    assert any(not torch.equal(value, server.params[name].data) for name, value in before.items())


def test_the_server_notices_when_the_last_client_is_lost(tmp_path: Path) -> None:
    server = built(recorded(tmp_path, "0,0,2", "2,0,2.5", "3,100,200")).server
    outcome = server.step().outcome
    assert [path[0] for path in outcome.plan.paths] == [0]
    assert server.elapsed.seconds == pytest.approx(2.5)
    # Now nobody is there until second 100, and client 3 needs four seconds.
    assert [path[0] for path in server.step().outcome.plan.paths] == [3]
    assert server.elapsed.seconds == pytest.approx(104.0)


def test_a_round_whose_clients_are_all_lost_passes(tmp_path: Path) -> None:
    server = built(recorded(tmp_path, "4,0,2", "5,0,3", "0,50,60")).server
    before = {name: value.data.clone() for name, value in server.params.items()}
    outcome = server.step().outcome
    assert (len(outcome.plan), server.round) == (0, 1)
    assert server.elapsed.seconds == pytest.approx(3.0)
    assert server.ledger["models_up"] == 0
    assert all(torch.equal(value, server.params[name].data) for name, value in before.items())


def test_a_deadline_ends_the_wait_for_a_lost_client(tmp_path: Path) -> None:
    rules = TimeConfig(deadline=4.0)
    server = built(recorded(tmp_path, "0,0,50", "6,0,6.5", time=rules)).server
    outcome = server.step().outcome
    assert outcome.time is not None
    assert (outcome.time.seconds, outcome.time.late) == (pytest.approx(4.0), (6,))


def test_partial_work_is_sent_before_a_client_leaves(tmp_path: Path) -> None:
    rules = TimeConfig(deadline=4.05, late="partial")
    server = built(recorded(tmp_path, "0,0,50", "6,0,6.5", "7,0,3", time=rules)).server
    outcome = server.step().outcome
    assert [path[0] for path in outcome.plan.paths] == [0, 6]
    assert server.selector.saw.steps.tolist() == [10, 5]


@pytest.mark.parametrize("devices", [None, Slower()])
def test_a_record_in_rounds_may_end_within_a_round(devices: Any, tmp_path: Path) -> None:
    config = recorded(tmp_path, "0,0,5", "1,0,1.5", "2,0,2", unit="rounds", devices=devices)
    server = built(config).server
    clients = [[path[0] for path in server.step().outcome.plan.paths] for _ in range(3)]
    assert clients == [[0, 1, 2], [0, 2], [0]]
    assert (server.ledger["trainings"], server.ledger["models_up"]) == (7, 6)
    assert server.counts[:3].tolist() == [3, 1, 2]


def test_an_asynchronous_run_waits_and_loses_clients(tmp_path: Path) -> None:
    rules = AsyncConfig(concurrency=3, buffer=1, staleness="constant")
    config = recorded(tmp_path, "0,5,500", "1,5,6", "2,5,500", asynchronous=rules, clients_per_round=1)
    server = built(config).server
    first, second, third = (server.step().outcome for _ in range(3))
    assert [path[0] for step in (first, second, third) for path in step.plan.paths] == [0, 0, 2]
    assert first.time is not None
    assert first.time.late == (1,)
    assert server.elapsed.seconds == pytest.approx(8.0)
    fourth = server.step().outcome
    assert [path[0] for path in fourth.plan.paths] == [0]


@pytest.mark.parametrize("asynchronous", [AsyncConfig(), AsyncConfig(concurrency=3, buffer=2)])
def test_resumed_runs_have_the_same_bits(asynchronous: AsyncConfig, tmp_path: Path) -> None:
    rows = ("0,5,500", "1,5,6", "2,5,500", "3,8,20", "4,9,11")
    config = recorded(tmp_path, *rows, asynchronous=asynchronous, selector=Uniform(), rounds=8)
    assert differ_when_resumed(config, [0, 2, 5]) == []


def test_a_record_in_rounds_is_what_it_is_without_seconds(tmp_path: Path) -> None:
    config = recorded(tmp_path, "0,0,5", "1,1,3", unit="rounds", devices=None)
    server = built(config).server
    assert [len(server.step().outcome.plan) for _ in range(4)] == [1, 2, 2, 1]
    assert [step.time for step in [run_round(server, 4)]] == [None]


def test_what_has_no_sense_is_refused(tmp_path: Path) -> None:
    config = recorded(tmp_path, "0,0,50")
    with pytest.raises(UserError, match=r"devices must be set with availability in seconds"):
        replace(config, devices=None)
    path = tmp_path / "short.csv"
    path.write_text("client,from,to\n0,0,0.5\n1,3,4.5\n")
    short = replace(config, availability=Intervals(str(path), unit="seconds"))
    with pytest.raises(UserError, match=r"as long as one local training, got at most 1.5 .* takes 1"):
        built(short)


def test_data_tells_how_long_nobody_is_there(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "record.csv"
    path.write_text("client,from,to\n0,0,10\n1,5,20\n2,30,40\n")
    words = ["data", "--clients", "3", "--clients_per_round", "1", "--availability", "Intervals", "--devices"]
    words += ["LogNormal", "--availability.path", str(path), "--picture", str(tmp_path / "p.png")]
    assert main([*words, "--availability.unit", "seconds"]) == 0
    assert "no client is available for 10 of the 40 simulated seconds" in capsys.readouterr().out
    assert main([*words, "--rounds", "40"]) == 0
    assert "no client is available in 10 of 40 rounds (20, 21, 22, 23, 24, ...)" in capsys.readouterr().out
