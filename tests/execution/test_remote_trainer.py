"""A run's clients trained by a cluster's actors: the same numbers, whoever of them dies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from runs import built, settings

from flsel.commands.cli import main
from flsel.config import RunConfig
from flsel.data.sources import load_source
from flsel.execution.on_ray.remote_trainer import RemoteTrainer, _Actor
from flsel.local import measure
from flsel.local.visit import from_one
from flsel.runner.build import build_with


@pytest.fixture(scope="module")
def cluster() -> Any:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    yield
    ray.shutdown()


def remote(config: RunConfig, workers: int) -> RunConfig:
    return replace(config, local=replace(config.local, workers=workers, backend="sequential"))


def test_a_run_is_the_same_with_actors_and_when_one_dies(tmp_path: Path, cluster: Any) -> None:
    config = settings(tmp_path)
    alone = built(remote(config, 1)).server
    for _ in range(3):
        alone.step()
    server = build_with(remote(config, 2), RemoteTrainer).server
    trainer: Any = server.federation.trainer
    server.step()
    ray.kill(trainer._actors[0])
    server.step()
    server.step()
    assert all(torch.equal(alone.params[name], server.params[name]) for name in alone.params)
    program = server.federation.program
    visits = from_one(server.params, range(8), 3, program)
    assert torch.equal(trainer.losses(visits), measure.losses(visits))


def test_an_actor_tells_its_errors(tmp_path: Path) -> None:
    config = settings(tmp_path)
    source = load_source(config.data, clients=config.clients, seed=config.seed)
    assert source is not None
    told = _Actor({"clients_per_round": 0}, None).ask(1, None, ({}, None))  # type: ignore[arg-type]
    assert "clients_per_round must be" in str(told)


def test_without_a_cluster_the_command_says_so(capsys: Any, tmp_path: Path) -> None:
    assert main(["train", "--address", "127.0.0.1:1", "--output.dir", str(tmp_path)]) == 2
    assert "is not a Ray cluster that answers" in capsys.readouterr().err
