"""Make cases: a network of parts, a loss, an optimizer, an objective, clients, and how they train."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn, optim
from torch.nn import functional as F

from flsel.local.schedule import BatchSpec
from flsel.objectives import FedAvg, FedProx, Objective
from zoo import gradients, hidden, identity, layers, layout, leaving, losses, mixing, numbers, state, views
from zoo.registry import CLASSES, IMAGE, INPUTS, PARTS, WIDTH, Part

MODULES = (gradients, hidden, identity, layers, layout, leaving, losses, mixing, numbers, state, views)

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": partial(optim.SGD, lr=0.1),
    "momentum": partial(optim.SGD, lr=0.05, momentum=0.9),
    "nesterov": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "decay": partial(optim.SGD, lr=0.1, weight_decay=0.1),
    "adam": partial(optim.Adam, lr=0.01),
    "adamw": partial(optim.AdamW, lr=0.01, weight_decay=0.1),
    "rmsprop": partial(optim.RMSprop, lr=0.01),
    "adagrad": partial(optim.Adagrad, lr=0.05),
}
SPECS = {
    "epoch": BatchSpec(8, epochs=1),
    "wrapped": BatchSpec(8, steps=3, last="wrap"),
    "steps": BatchSpec(5, steps=4),
    "small": BatchSpec(3, epochs=1),
    "longer": BatchSpec(6, steps=6, last="wrap"),
}
SIZES = ((9, 1, 14), (8, 16, 8), (11, 2, 5), (3, 4, 7))
MU = 0.5


class Net(nn.Module):
    """Two layers with parts before, between and after them.

    Args:
        convolves: The first layer convolves.
        parts: What is in between, in order; places say where.
    """

    def __init__(self, convolves: bool, parts: Sequence[Part]) -> None:
        super().__init__()
        made = [(part.place, part.made()) for part in parts if part.place in ("input", "image", "layer")]
        self.convolves = convolves or any(place == "image" for place, _ in made)
        self.first: nn.Module = nn.Conv2d(1, IMAGE[0], 2) if self.convolves else nn.Linear(INPUTS, WIDTH)
        self.middle = nn.Linear(IMAGE[0] * IMAGE[1] * IMAGE[2], WIDTH) if self.convolves else nn.Identity()
        self.inputs, self.images, self.layers = (
            nn.Sequential(*(module for there, module in made if there == place))
            for place in ("input", "image", "layer")
        )
        self.last = nn.Linear(WIDTH, CLASSES)
        for part in parts:
            if part.place == "change":
                part.made(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, CLASSES]`` of inputs ``[B, INPUTS]``."""
        x = self.inputs(x)
        if self.convolves:
            x = self.images(self.first(x.view(-1, 1, 3, 4))).flatten(1)
            h = torch.tanh(self.middle(x))
        else:
            h = torch.tanh(self.first(x))
        logits: Tensor = self.last(self.layers(h))
        return logits


class Task(LightningModule):
    """A network with a loss of its own.

    Args:
        net: The network.
        loss: Its loss, of module, inputs, labels (and number of the step).
    """

    def __init__(self, net: Net, loss: Any) -> None:
        super().__init__()
        self.net = net
        self.own = loss
        self.numbered = len(inspect.signature(loss).parameters) > 3
        self.spare = nn.Parameter(torch.rand(CLASSES))
        self.other = nn.Parameter(torch.rand(WIDTH, CLASSES))
        self.stored = [p for p in net.parameters() if p.requires_grad]
        self.history: list[float] = []

    @property
    def last(self) -> nn.Linear:
        """The output layer."""
        return self.net.last

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.net(x)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        """Return the loss."""
        x, y = batch
        return self.own(self, x, y, batch_idx) if self.numbered else self.own(self, x, y)


@dataclass(frozen=True)
class Case:
    """One model with all that its training depends on.

    Attributes:
        parts: Names of its parts.
        convolves: Its first layer convolves.
        optimizer: Key of ``OPTIMIZERS``.
        spec: Key of ``SPECS``.
        precision: As in settings.
        proximal: Minimise with FedProx's penalty, else by FedAvg.
        sizes: Examples of each client.
        rounds: Rounds with one trainer, from the same starts.
        seed: Of data and initial numbers.
    """

    parts: tuple[str, ...]
    convolves: bool = False
    optimizer: str = "sgd"
    spec: str = "wrapped"
    precision: str = "64-true"
    proximal: bool = False
    sizes: tuple[int, ...] = (9, 1, 14)
    rounds: int = 1
    seed: int = 0
    shards: list[Tensor] = field(init=False, repr=False, compare=False)
    x: Tensor = field(init=False, repr=False, compare=False)
    y: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(self.seed)
        count = sum(self.sizes)
        own: dict[str, Any] = {
            "x": torch.randn(count, INPUTS, generator=draw, dtype=torch.float64).to(self.dtype),
            "y": torch.randint(0, CLASSES, (count,), generator=draw),
            "shards": list(torch.randperm(count, generator=draw).split(self.sizes)),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @property
    def dtype(self) -> torch.dtype:
        """Of parameters and inputs."""
        return {"64-true": torch.float64, "32-true": torch.float32}[self.precision]

    @property
    def kinds(self) -> set[str]:
        """Families of its parts."""
        return {PARTS[name].kind for name in self.parts}

    def model(self) -> nn.Module:
        """Make the model anew, in single precision, the same each time."""
        with torch.random.fork_rng():
            # For each device that is not there torch.manual_seed notes the stack, which takes longer.
            torch.default_generator.manual_seed(self.seed)
            parts = [PARTS[name] for name in self.parts]
            net = Net(self.convolves, parts)
            losses = [part.made for part in parts if part.place == "loss"]
            return Task(net, losses[-1]) if losses else net

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, step: int) -> Tensor:
        """Return the loss of a batch."""
        if not isinstance(model, Task):
            return F.cross_entropy(model(x), y)
        found = model.training_step((x, y), step)
        loss: Tensor = found["loss"] if isinstance(found, dict) else found
        return loss

    def make_optimizer(self, params: Any) -> optim.Optimizer:
        """Make the local optimizer."""
        return OPTIMIZERS[self.optimizer](params)

    def batches(self) -> BatchSpec:
        """Return how much a client trains."""
        return SPECS[self.spec]

    def objective(self) -> Objective:
        """Return the objective."""
        return FedProx(MU) if self.proximal else FedAvg()


def of_each_part() -> list[Case]:
    """Return one case for each part, with what is around it in turn."""
    turns = itertools.count()
    return [_shown(name) or _around((name,), np.random.default_rng(next(turns))) for name in PARTS]


def _shown(name: str) -> Case | None:
    """Return the case in which a part with hidden state ends elsewhere, if nothing is done about it."""
    if PARTS[name].kind != "hidden state":
        return None
    return Case((name,), spec="longer", sizes=(12, 6, 18), rounds=2)


def drawn(seed: int) -> Case:
    """Draw a case with one to three parts."""
    rng = np.random.default_rng(seed)
    names = sorted(PARTS)
    chosen = [str(name) for name in rng.choice(names, size=int(rng.integers(1, 4)), replace=False)]
    return _around(tuple(chosen), rng, seed)


def _around(names: tuple[str, ...], rng: np.random.Generator, seed: int = 0) -> Case:
    def one(values: Any) -> Any:
        values = list(values)
        return values[int(rng.integers(len(values)))]

    return Case(
        parts=names,
        convolves=bool(rng.random() < 0.25),
        optimizer=one(OPTIMIZERS),
        spec=one(SPECS),
        precision=str(rng.choice(["64-true", "32-true"], p=[0.75, 0.25])),
        proximal=bool(rng.random() < 0.2),
        sizes=one(SIZES),
        # What a round leaves behind, the next one meets.
        rounds=2 if any(PARTS[name].kind in ("state", "hidden state") for name in names) else 1,
        seed=seed,
    )
