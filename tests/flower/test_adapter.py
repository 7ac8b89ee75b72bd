"""flsel's messages over Flower's own types, with nodes in this process; needs flwr (make test-flower)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from channels import outcome
from runs import same, settings

from flsel.config.groups import LocalConfig, OutputConfig
from flsel.execution.run import execute, run
from flsel.flower.grid_trainer import GridTrainer
from flsel.flower.node import Node
from flsel.runner.session import Session
from flsel.selectors import PowD

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from flsel.flower.adapter import QUIET, GridChannel, client_app, from_records, to_records

SEQUENTIAL = LocalConfig(batch_size=5, steps=3, backend="sequential")


class LocalGrid(Grid):
    """Calls ClientApps directly; a message may be refused, answered late or never."""

    def __init__(self, config: Any, nodes: int) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.apps = {}
        for part in range(nodes):
            node = Node(config, part, nodes)
            answer = lambda action, models, values, _, node=node: node.answer(action, models, values)  # noqa: E731
            self.apps[100 + part] = client_app(answer)
        self.waiting: dict[str, Message] = {}
        self.refused, self.dead, self.ttls = set[int](), set[int](), set[float]()

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *given: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *given: Any, **named: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)[::-1]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids: list[Any] = []
        for message in messages:
            name, node = f"m{len(self.waiting)}", message.metadata.dst_node_id
            self.ttls.add(message.metadata.ttl)
            ids.append(None if node in self.refused else name)
            message.metadata.__dict__["_message_id"] = name
            context = Context(1, node, {}, RecordDict(), {})
            if node in self.dead:
                self.waiting[name] = Message(Error(3, "Message Unavailable"), reply_to=message)
            elif node not in self.refused:
                self.waiting[name] = self.apps[node](message, context)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.waiting[name] for name in message_ids]


def test_flower_is_quiet_before_it_is_imported() -> None:
    assert all(os.environ[name] == value for name, value in QUIET.items())


def test_records_hold_what_was_put_in() -> None:
    models = {"start0": {"a.weight": np.eye(3, dtype=np.float32)}, "start1": {"b": np.full((), np.nan)}}
    back, values = from_records(to_records(models, {"clients": [1, 2], "version": "x"}))
    assert values == {"clients": [1, 2], "version": "x"}
    for name, model in models.items():
        for key, value in model.items():
            np.testing.assert_array_equal(back[name][key], value)
            assert back[name][key].dtype == value.dtype


def test_a_run_over_flowers_messages_equals_the_run_in_one_process(tmp_path: Path) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, selector=PowD(d=5))
    run(
        settings(
            tmp_path, local=SEQUENTIAL, selector=PowD(d=5), output=OutputConfig(str(tmp_path), "here", 1)
        )
    )
    grid = LocalGrid(config, 3)
    execute(Session.start(config, lambda c, s: GridTrainer(GridChannel(grid), c, 8, timeout=7.0)))
    assert same(outcome(tmp_path / "run"), outcome(tmp_path / "here"))
    assert grid.ttls == {7.0}


@pytest.mark.parametrize("fault", ["refused", "dead"])
def test_lost_messages_are_dropped_paths(tmp_path: Path, fault: str) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, clients_per_round=8)
    grid = LocalGrid(config, 2)
    trainer = GridTrainer(GridChannel(grid), config, 8, timeout=1.0)
    getattr(grid, fault).add(101)
    result = execute(Session.start(config, lambda c, s: trainer))
    assert result.summary["dropped_updates"] == 4 * config.rounds
