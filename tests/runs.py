"""Tiny runs for tests: settings, a quadratic task in closed form, and what a run left behind."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, optim
from torch.utils.data import TensorDataset

from flsel.config import RunConfig
from flsel.config.groups import LocalConfig, OutputConfig
from flsel.data.data_config import DataConfig, SyntheticConfig
from flsel.engine.federation import Federation
from flsel.engine.round_job import RoundOutcome, train
from flsel.engine.server import Server
from flsel.local.visit import from_rows
from flsel.params import Params
from flsel.runner.build import Built, build
from flsel.runner.saved_settings import read_config
from flsel.runner.session import Session

DIMENSION = 3
SMALL = SyntheticConfig(size_mean=2.5, size_std=0.8, size_min=10, dimension=8, classes=4)


def settings(folder: Path, **changes: Any) -> RunConfig:
    """A run of about 20 ms a round: 8 clients, 3 a round, 6 rounds."""
    base = RunConfig(
        rounds=6,
        clients=8,
        clients_per_round=3,
        data=DataConfig(synthetic=SMALL),
        local=LocalConfig(batch_size=5, steps=3, optimizer=partial(optim.SGD, lr=0.1, momentum=0.9)),
        output=OutputConfig(dir=str(folder), name="run", checkpoint_every=1),
        accelerator="cpu",
        quiet=True,
    )
    return replace(base, **changes)


def built(config: RunConfig) -> Built:
    return build(config)


def started(config: RunConfig, **given: Any) -> Session:
    """The session of a new run; what is given goes to ``build``."""
    return Session.start(config, build(config, **given))


def resumed(folder: Path, rounds: int | None = None, **given: Any) -> Session:
    """The session that goes on with the run in a folder."""
    config = read_config(folder, rounds)
    return Session(config, folder, build(config, **given))


def differ_when_resumed(config: RunConfig, starts: Sequence[int], rounds: int | None = None) -> list[int]:
    """Rounds among ``starts`` from which a saved and loaded run goes another way than one that went on.

    Args:
        config: The run.
        starts: Rounds after which it is stopped.
        rounds: How many rounds it then runs; None: all that are left.
    """
    server, states, plans = built(config).server, [], []
    for _ in range(config.rounds):
        states.append(_saved(server))
        plans.append(server.step().outcome.plan)
    states.append(_saved(server))
    differ = []
    for start in starts:
        again, end = built(config).server, min(config.rounds, start + (rounds or config.rounds))
        again.load_state_dict(states[start])
        planned = [again.step().outcome.plan for _ in range(start, end)]
        if planned != plans[start:end] or not same(_saved(again), states[end]):
            differ.append(start)
    return differ


def _saved(server: Server) -> Any:
    buffer = io.BytesIO()
    torch.save(server.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def run_round(server: Server, round: int = 0) -> RoundOutcome:
    """Run a round; the server stays where it is."""
    federation = server.federation
    job = federation.open(round, server.params, server.selector)
    (ends,) = train([job], federation.trainer)
    return federation.close(job, ends)


def trained(federation: Federation, starts: Params, clients: list[int], round: int) -> Params:
    """Train clients from the rows of a stack."""
    return federation.trainer.train(from_rows(starts, clients, round, federation.program))


class Quadratic(LightningModule):
    """F_k(w) = mean over the client's points x of |w - x|^2 / 2, so every step has a closed form."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((DIMENSION,), 5.0))
        self.lr = lr

    def forward(self, x: Tensor) -> Tensor:
        return self.w + 0.0 * x

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return ((self.w - batch[0]) ** 2).sum(dim=1).mean() / 2

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.SGD(self.parameters(), lr=self.lr)


class InterruptIn:
    """A callback that sends this process the signal of Ctrl-C in the middle of a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_round_start(self, server: Any) -> None:
        if server.round == self.round:
            os.kill(os.getpid(), signal.SIGINT)


def points(examples: int = 40) -> tuple[TensorDataset, TensorDataset]:
    """Points of unequal clients for :class:`Quadratic`, as a dataset by import path."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(examples, DIMENSION, generator=generator, dtype=torch.float64)
    y = torch.arange(examples) % DIMENSION
    return TensorDataset(x, y), TensorDataset(x[:9], y[:9])


def left_behind(folder: Path) -> dict[str, Any]:
    """Everything of a finished run that a resumed one must reproduce bit for bit."""
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["server"]
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    timed = [name.startswith("seconds/") for name in header.split(",")]
    metrics = [[c for c, t in zip(row.split(","), timed, strict=True) if not t] for row in rows]
    rounds = folder / "rounds.jsonl"
    plans = [json.loads(line) for line in rounds.read_text().splitlines()] if rounds.exists() else []
    diagnostics = lines(folder / "diagnostics.jsonl")
    return {"state": state, "metrics": metrics, "plans": plans, "diagnostics": diagnostics}


def lines(path: Path) -> list[str]:
    """The lines of a file; none if it is not there yet."""
    return path.read_text().splitlines() if path.exists() else []


def wait_for(condition: Callable[[], bool], seconds: float = 500.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def same(one: Any, other: Any) -> bool:
    """Equality of nested values, bit for bit in tensors."""
    if isinstance(one, Tensor):
        # Bits, not values: NaN equals itself.
        return isinstance(other, Tensor) and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
