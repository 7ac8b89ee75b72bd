"""One malformed answer costs the clients of its node their round in a deployed run; needs flwr."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runs import built, settings

import flsel.flower.contacts
from flsel.errors import UserError
from flsel.flower.grid_trainer import GridTrainer
from flsel.flower.wire import Reply
from flsel.local.visit import Visit

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from channels import InProcess
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from test_adapter import SEQUENTIAL, grid_of
from test_malformed import ARRAYS, MODEL, NUMBERS, RECORDS

from flsel.flower.adapter import GridChannel

KINDS = {n: k for n, k in (ARRAYS | RECORDS).items() if "counter" not in n and n != "two models"}


def spoiled(name: str) -> Any:
    """A fault of one node, whose first arrays go by the names of the small app's for a moment."""

    def fault(message: Message, reply: Message) -> Message | None:
        if message.metadata.dst_node_id != 101 or "hello" in message.metadata.message_type:
            return reply
        alias = dict(zip(reply.content["answer"], MODEL, strict=False))
        back = {new: old for old, new in alias.items()}
        arrays = {alias.get(key, key): array for key, array in reply.content["answer"].items()}
        arrays = {"bias": arrays["weight"]} | arrays
        records = RecordDict(
            {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(), "flsel": ConfigRecord()}
        )
        found = KINDS[name](records)
        if isinstance(found, Error):
            return Message(found, reply_to=message)
        content = RecordDict()
        for key, record in (records if found is None else found).items():
            if isinstance(record, ArrayRecord):
                record = ArrayRecord(
                    {back.get(n, n): a for n, a in record.items() if n in back or n not in MODEL}
                )
            content["answer" if key == "arrays" else key] = record
        return Message(content, reply_to=message)

    return fault


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = settings(tmp_path_factory.mktemp("run"), local=SEQUENTIAL)
    grid = grid_of(config, 2)
    trainer = GridTrainer(GridChannel(grid), config, 8, timeout=9.0)
    program = built(config).program
    start = {name: value.detach().clone() for name, value in program.state().items()}
    return grid, trainer, [Visit(start, client, 0, program) for client in range(4)]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("question", ["train", "losses", "gradients"])
def test_a_malformed_answer_of_a_node_is_lost(
    deployed: Any, name: str, question: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid, trainer, visits = deployed
    if question == "losses" and name == "a missing array":
        pytest.skip("an answer about losses has one array")
    ask = getattr(trainer, question)
    grid.fault = None
    plain = ask(visits)
    grid.fault = spoiled(name)
    with caplog.at_level(logging.WARNING, "flsel"):
        found = ask(visits)
    for key, value in found.items() if isinstance(found, dict) else [("loss", found)]:
        assert torch.equal(value[[0, 2]], (plain[key] if isinstance(plain, dict) else plain)[[0, 2]])
        assert bool(
            (~value[[1, 3]].isfinite()).flatten(1).any() if value.dim() > 1 else value[[1, 3]].isnan().all()
        )
    assert all(record.getMessage().isprintable() for record in caplog.records if record.name == "flsel")


HELLOS = {f"{field}: {n}": {field: v} for field in ("partition", "partitions") for n, v in NUMBERS.items()}


@pytest.mark.parametrize("values", HELLOS.values(), ids=HELLOS)
def test_a_malformed_hello_of_a_node_is_named(tmp_path: Path, values: dict[str, Any]) -> None:
    config = settings(tmp_path, local=SEQUENTIAL)
    channel = InProcess(config, 2)
    node = channel.parts[1000]

    def answer(action: str, models: Any, asked: Any) -> Reply:
        return Reply(values={**node.answer(action, models, asked).values, **values})

    channel.parts[1000] = SimpleNamespace(answer=answer)
    with pytest.raises(UserError, match="node 1000 cannot take part: ") as refused:
        GridTrainer(channel, config, 8, timeout=1.0)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


def test_nodes_that_come_back_do_not_take_the_place_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(tmp_path, local=SEQUENTIAL)
    channel = InProcess(config, 2)
    trainer = GridTrainer(channel, config, 8, timeout=0.0)
    channel.parts |= {
        5: channel.parts[1007],
        6: SimpleNamespace(answer=lambda *asked: Reply(values={"partition": 7})),
    }
    with caplog.at_level(logging.WARNING, "flsel"):
        assert bool(trainer.reachable(1).all())
        assert {trainer.homes[client] for client in (1, 3, 5, 7)} == {1007}
        del channel.parts[1007]
        assert bool(trainer.reachable(2).all())
    assert {trainer.homes[client] for client in (1, 3, 5, 7)} == {5}
    assert sorted(caplog.messages) == [
        "node 5 does not take part: it says that it has client 1, which node 1007 has",
        "node 6 does not take part: it must run the app that flsel deploy wrote, but its hello names no "
        "partition",
    ]


def test_a_deployment_greets_until_the_wait_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flsel.flower.contacts, "POLL_SECONDS", 0.01)
    config = settings(tmp_path, local=SEQUENTIAL)
    channel = InProcess(config, 3)
    node, failed = channel.parts[1007], list[str]()

    def answer(action: str, models: Any, values: Any) -> Reply:
        failed.append(action)
        return Reply(error="it restarts") if len(failed) < 4 else node.answer(action, models, values)

    channel.parts[1007] = SimpleNamespace(answer=answer)
    assert len(GridTrainer(channel, config, 8, timeout=0.1, wait=5.0).homes) == 8
    del channel.parts[1007]
    with pytest.raises(
        UserError,
        match=r"3 of 8 have none, client 1 first\. 2 nodes came within 0\.1 s; those of "
        r"partition-id 1 are missing",
    ):
        GridTrainer(channel, config, 8, timeout=0.1, wait=0.1)
