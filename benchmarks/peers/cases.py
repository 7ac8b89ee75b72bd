"""The two workloads as flsel's settings, and as files that every peer can read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.data.data_config import DataConfig
from flsel.models import MLP, McMahanCNN
from flsel.partition import IID
from flsel.runner.build import build

ROUNDS = 60
LR = 0.05
NETWORKS = {"W1": partial(MLP, hidden=[64, 30]), "W2": McMahanCNN}
TITLES = {
    "W1": "MLP 784-64-30-10, 10 of 100 clients, 20 steps of 64",
    "W2": "McMahan CNN, 10 of 100 clients, 10 steps of 32",
}


def config_of(kind: str, root: str) -> RunConfig:
    """Return the settings of a workload."""
    batch, steps = (64, 20) if kind == "W1" else (32, 10)
    return RunConfig(
        seed=1,
        rounds=ROUNDS,
        clients=100,
        clients_per_round=10,
        data=DataConfig(name="fashion_mnist", root=root, validation=0.0, server=0.0),
        partition=IID(),
        model=NETWORKS[kind],
        local=LocalConfig(batch_size=batch, steps=steps, optimizer=partial(torch.optim.SGD, lr=LR)),
        evaluation=EvaluationConfig(every=ROUNDS),
        accelerator="cpu",
        quiet=True,
    )


def write(kind: str, root: str, path: Path) -> None:
    """Write down data, start, and what flsel draws in every round: clients and batches."""
    config = config_of(kind, root)
    built = build(replace(config, local=replace(config.local, backend="sequential")))
    server, program = built.server, built.program
    cohorts, positions = [], []
    for round in range(ROUNDS):
        job = server.federation.open(round, server.params, server.selector)
        clients = [path[0] for path in job.plan.paths]
        cohorts.append(clients)
        positions.append(torch.stack([program.batches(client, round) for client in clients]).numpy())
    normalize = program.population.normalize
    np.savez(
        path,
        kind=kind,
        clients=config.clients or 0,
        x=program.population.x.numpy(),
        y=program.population.y.numpy(),
        cohorts=np.array(cohorts),
        positions=np.stack(positions),
        scale=float(normalize.scale),
        shift=float(normalize.shift),
        **{f"p.{name}": value.numpy() for name, value in server.params.items()},
    )
