"""`auto` against `sequential` where a model is not compiled, or gains little by it: whole rounds."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from measure import add_options, alternate, ratios, spread, table, verdict
from settings import start
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.data.data_config import DataConfig
from flsel.local.sequential import SequentialTrainer
from flsel.models import MLP, LogisticRegression
from flsel.partition import Natural
from flsel.runner.build import build

MOST = 1.1  # of the sequential trainer's time, after the first round
CLIENTS, BATCH, STEPS = 10, 32, 6
IMAGE = (1, 28, 28)
OPTIMIZERS = {"SGD": partial(optim.SGD, lr=0.05), "Adam": partial(optim.Adam, lr=1e-3)}


class Tokens(nn.Module):
    """Means of embeddings of 20,000 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20_000, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words((x.flatten(1).abs() * 4_000).long().clamp(max=19_999)).mean(1))


class FunctionalCNN(nn.Module):
    """Convolutions as functions of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(0.1 * torch.randn(16, 1, 5, 5))
        self.second = nn.Parameter(0.05 * torch.randn(32, 16, 5, 5))
        self.head = nn.Linear(32 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        for weight in (self.first, self.second):
            x = F.max_pool2d(F.relu(F.conv2d(x, weight)), 2)
        return self.head(x.flatten(1))


class Recurrent(nn.Module):
    """A GRU over the rows of an image: a cell in a loop, or torch's layer."""

    def __init__(self, cell: bool) -> None:
        super().__init__()
        self.rows = nn.GRUCell(28, 64) if cell else nn.GRU(28, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        if isinstance(self.rows, nn.GRU):
            return self.head(self.rows(x)[0][:, -1])
        state = x.new_zeros(len(x), 64)
        for step in range(x.shape[1]):
            state = self.rows(x[:, step], state)
        return self.head(state)


class Transformer(nn.Module):
    """Two layers of torch's encoder over the rows of an image."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)
        self.rows, self.head = nn.Linear(28, 32), nn.Linear(32, 10)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.rows(x.flatten(1, 2))).mean(1))


def batch_norm() -> nn.Module:
    """Make a small network with batch normalisation."""
    layers = [nn.Conv2d(1, 16, 5), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 36, 10))


class Own(LightningModule):
    """A network with a step of its own, which may do what no compiled step does.

    Args:
        net: Makes the network.
        optimizer: Makes its optimizer.
        numbers: Let the step read ``batch_idx``.
    """

    def __init__(self, net: Callable[[], nn.Module], optimizer: Any, numbers: bool) -> None:
        super().__init__()
        self.net, self.make, self.numbers = net(), optimizer, numbers

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        return loss * 0.9**batch_idx if self.numbers else loss

    def configure_optimizers(self) -> optim.Optimizer:
        return self.make(self.parameters())


@dataclass(frozen=True)
class Case:
    """A model, its optimizer, and whether it is within a LightningModule, or in one that reads numbers."""

    name: str
    net: Callable[[], nn.Module]
    optimizer: str = "SGD"
    own: bool = False
    numbers: bool = False

    @property
    def title(self) -> str:
        """What the table calls it."""
        ends = ", reads batch_idx" if self.numbers else ", LightningModule" if self.own else ""
        return self.name + ends


LOGISTIC = partial(LogisticRegression, 10, IMAGE)
SMALL, LARGE = (partial(MLP, 10, IMAGE, hidden=[width]) for width in (64, 1024))
CASES: Sequence[Case] = (
    *(Case("logistic regression", LOGISTIC, kind, own=True, numbers=True) for kind in OPTIMIZERS),
    *(Case("MLP 64", SMALL, kind, own=True, numbers=True) for kind in OPTIMIZERS),
    *(Case("MLP 1,024", LARGE, kind) for kind in OPTIMIZERS),
    *(Case("MLP 1,024", LARGE, kind, own=True) for kind in OPTIMIZERS),
    *(Case("MLP 1,024", LARGE, kind, own=True, numbers=True) for kind in OPTIMIZERS),
    *(Case("embedding of 20,000 rows", Tokens, kind) for kind in OPTIMIZERS),
    *(Case("embedding of 20,000 rows", Tokens, kind, own=True) for kind in OPTIMIZERS),
    *(Case("CNN by functions", FunctionalCNN, kind) for kind in OPTIMIZERS),
    Case("CNN by functions", FunctionalCNN, own=True),
    Case("GRUCell over 28 steps", partial(Recurrent, True)),
    Case("GRUCell over 28 steps", partial(Recurrent, True), own=True),
    Case("GRU layer", partial(Recurrent, False)),
    *(Case("transformer, dropout 0.1", partial(Transformer, 0.1), kind) for kind in OPTIMIZERS),
    *(Case("transformer without dropout", partial(Transformer, 0.0), kind) for kind in OPTIMIZERS),
    Case("transformer without dropout", partial(Transformer, 0.0), own=True),
    Case("CNN with batch normalisation", batch_norm),
)


def dataset(equal: bool) -> Any:
    """Return random images of ten clients, of 192 examples each or of 96 to 288."""
    draw = np.random.default_rng(0)
    most = BATCH * STEPS
    sizes = np.full(CLIENTS, most) if equal else draw.integers(most // 2, most * 3 // 2, CLIENTS)
    x = torch.from_numpy(draw.standard_normal((int(sizes.sum()), *IMAGE), dtype=np.float32))
    train = TensorDataset(x, torch.from_numpy(draw.integers(0, 10, len(x))))
    train.owner = np.repeat(np.arange(CLIENTS), sizes)
    return train, TensorDataset(x[:100], train.tensors[1][:100])


class Seen:
    """Notes which trainer trains a round; the self-check compares one client at a time once a run goes on."""

    def __init__(self) -> None:
        self.by = "compiled"

    def over(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a trainer's method that does the same and is noted."""

        def noted(trainer: Any, visits: Sequence[Any]) -> Any:
            if len(visits) > 1:
                self.by = name
            return function(trainer, visits)

        return noted

    def who(self, train: Callable[[], object]) -> str:
        """Play a round, and say by whom it was trained."""
        kept, self.by = SequentialTrainer.train, "compiled"
        SequentialTrainer.train = self.over("sequential", kept)  # type: ignore[method-assign]
        try:
            train()
        finally:
            SequentialTrainer.train = kept  # type: ignore[method-assign]
        return self.by


def measure(case: Case, equal: bool, rounds: int) -> list[str]:
    """Take rounds of `auto` and of `sequential` in turn, and return the row of the table."""
    sides: dict[str, Callable[[], object]] = {}
    optimizer = OPTIMIZERS[case.optimizer]
    for backend in ("auto", "sequential"):
        own = None if case.own else optimizer
        local = LocalConfig(batch_size=BATCH, epochs=1, optimizer=own, backend=backend)
        config = RunConfig(
            seed=1, rounds=1000, clients=CLIENTS, clients_per_round=CLIENTS, local=local, quiet=True,
            data=DataConfig(name=dataset(equal), validation=0.0, server=0.0), partition=Natural(),
            model=partial(Own, case.net, optimizer, case.numbers) if case.own else case.net,
            evaluation=EvaluationConfig(every=1000), accelerator="cpu", threads=1,
        )  # fmt: skip
        sides[backend] = build(config).server.step
    first = alternate(sides, 1, time.process_time)["auto"][0]
    seconds = alternate(sides, rounds, time.process_time)
    plain, whole = median(seconds["sequential"]), sum(seconds["auto"]) / sum(seconds["sequential"])
    return [
        case.title, case.optimizer, "equal" if equal else "unequal", Seen().who(sides["auto"]),
        f"{1000 * plain:.0f} ms", f"{first / plain:.1f}",
        spread(ratios(seconds["auto"], seconds["sequential"])), f"{whole:.2f}", verdict(whole, MOST),
    ]  # fmt: skip


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--only", default="", help="cases whose title has this")
    chosen = parser.parse_args()
    start(chosen)
    logging.getLogger("flsel").setLevel(logging.ERROR)
    rows = []
    for case in CASES:
        for equal in (True, False) if chosen.only in case.title else ():
            rows.append(measure(case, equal, 3 if chosen.quick else 10))
            print(" | ".join(rows[-1]), flush=True)
    head = (
        "model", "optimizer", "clients", "trained by", "sequential, a round", "first round",
        "a round", "rounds 2 to 11", f"<= {MOST}",
    )  # fmt: skip
    print(f"\n{table(head, rows)}")


if __name__ == "__main__":
    main()
