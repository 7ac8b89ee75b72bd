"""flsel's messages over Flower's own types, with nodes in this process; needs flwr (make test-flower)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from channels import outcome
from runs import same, settings, started

from flsel.config.groups import LocalConfig, OutputConfig
from flsel.execution.run import execute, run
from flsel.flower.grid_trainer import GridTrainer
from flsel.flower.node import Node
from flsel.selectors import PowD

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from flwr.clientapp import ClientApp
from grids import LocalGrid

from flsel.flower.adapter import QUIET, GridChannel, client_app, from_records, to_records

SEQUENTIAL = LocalConfig(batch_size=5, steps=3, backend="sequential")


def grid_of(config: Any, nodes: int) -> LocalGrid:
    def app(part: int) -> ClientApp:
        node = Node(config, part, nodes)
        return client_app(lambda action, models, values, _: node.answer(action, models, values))

    return LocalGrid({100 + part: (app(part), {}) for part in range(nodes)})


def test_flower_is_quiet_before_it_is_imported() -> None:
    assert all(os.environ[name] == value for name, value in QUIET.items())


def test_records_hold_what_was_put_in() -> None:
    models = {"start0": {"a.weight": np.eye(3, dtype=np.float32)}, "start1": {"b": np.full((), np.nan)}}
    back, values = from_records(to_records(models, {"clients": [1, 2], "version": "x"}))
    assert values == {"clients": [1, 2], "version": "x"}
    for name, model in models.items():
        for key, value in model.items():
            np.testing.assert_array_equal(back[name][key], value)
            assert back[name][key].shape == value.shape
            assert back[name][key].dtype == value.dtype


def test_a_run_over_flowers_messages_equals_the_run_in_one_process(tmp_path: Path) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, selector=PowD(d=5))
    run(
        settings(
            tmp_path, local=SEQUENTIAL, selector=PowD(d=5), output=OutputConfig(str(tmp_path), "here", 1)
        )
    )
    grid = grid_of(config, 3)
    execute(started(config, trainer=GridTrainer(GridChannel(grid), config, 8, timeout=7.0)))
    assert same(outcome(tmp_path / "run"), outcome(tmp_path / "here"))
    assert {message.metadata.ttl for message in grid.sent} == {7.0}


@pytest.mark.parametrize("fault", ["refused", "dead"])
def test_lost_messages_are_dropped_paths(tmp_path: Path, fault: str) -> None:
    config = settings(tmp_path, local=SEQUENTIAL, clients_per_round=8)
    grid = grid_of(config, 2)
    trainer = GridTrainer(GridChannel(grid), config, 8, timeout=1.0)
    getattr(grid, fault).add(101)
    result = execute(started(config, trainer=trainer))
    # The node is left out for one round after its second failure, and for two after its third.
    assert [len(step.plan) for step in result.rounds] == [8, 8, 4, 8, 4, 4]
    assert result.summary["dropped_updates"] == 4 * 3
