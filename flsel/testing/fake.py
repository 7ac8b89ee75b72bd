"""A tiny federation in memory for the contract checks: no dataset, no training, everything a formula.

Each client pulls the model towards a target of its own, whose output bias follows the client's labels:
training moves a model a fifth of the way, and the loss is the mean squared distance to the target.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.engine.closing import Closing
from flsel.params import Params, flatten, weighted_sum
from flsel.rng import generator
from flsel.selector import IDLE, Late, Need, Plan, Updates, View
from flsel.testing.formula import FormulaFederation

_SHAPES = {"body.weight": (5, 3), "head.weight": (4, 5), "head.bias": (4,)}
_LENGTHS = [math.prod(shape) for shape in _SHAPES.values()]
# Of a flat model's squared distances: the mean over the tensors of each one's mean.
_MEANS = torch.cat([torch.full((n,), 1 / (n * len(_LENGTHS)), dtype=torch.float64) for n in _LENGTHS])
CLASSES = 4


def label_counts(clients: int) -> Tensor:
    """Make uneven label counts, int64 ``[clients, CLASSES]``, every client with at least one example."""
    rng = generator(0, "fake-labels")
    counts = rng.integers(0, 30, (clients, CLASSES)) * (rng.random((clients, CLASSES)) < 0.6)
    counts[np.arange(clients), np.arange(clients) % CLASSES] += 1
    return torch.from_numpy(counts.astype(np.int64))


@dataclass(frozen=True)
class World:
    """Settings of a :class:`FakeFederation`.

    Attributes:
        counts: Label counts per client, int64 ``[N, C]``.
        clients_per_round: Most paths per round.
        seed: Seed of the selector's draws only.
        rounds: Communication rounds of the run.
        presence: Chance of a client to be available in a round; one client is, but in the rounds ``empty``.
        alike: Whether all clients have the same target.
        poison: Number that poisoned clients report instead of losses and updates; None for none.
        poisoned: Share of clients that are poisoned.
        lose: Whether each round's last update is lost; in every other round it is known to be late.
        head_bias: Whether the output layer has a bias.
        empty: Rounds in which nobody is available.
    """

    counts: Tensor
    clients_per_round: int
    seed: int = 0
    rounds: int = 12
    presence: float = 0.7
    alike: bool = False
    poison: float | None = None
    poisoned: float = 0.3
    lose: bool = False
    head_bias: bool = True
    empty: tuple[int, ...] = ()


class FakeFederation(FormulaFederation):
    """A federation that runs rounds step by step and notes which information was read."""

    def __init__(self, world: World) -> None:
        params = {name: torch.zeros(shape) for name, shape in _SHAPES.items()}
        super().__init__(
            world.counts,
            params,
            clients_per_round=world.clients_per_round,
            rounds=world.rounds,
            seed=world.seed,
        )
        self.world = world
        self.poisoned = torch.arange(len(world.counts)) < world.poisoned * len(world.counts)
        self.targets = _targets(world.counts, alike=world.alike)
        self.reads = Need.NONE
        self.closing = Closing(("head.weight", "head.bias" if world.head_bias else None))

    def view(self, needs: Need) -> View:
        """Return the view of the coming round, which notes what is read."""
        view = super().view(needs)
        return replace(view, answers=_NotedAnswers(view.answers, self._note))

    def available(self, round: int) -> Tensor:
        """Tell which clients are available in a round, bool ``[N]``."""
        available = _chances(len(self.sizes), round) < self.world.presence
        available[round % len(available)] = True
        return torch.from_numpy(available & (round not in self.world.empty))

    def updates(self, plan: Plan, needs: Need) -> Updates:
        """Return what the paths of a plan bring back, declared or not; what is read is noted."""
        kept = Plan(plan.paths[:-1]) if self.world.lose and len(plan) > 1 else plan
        updates = super().updates(kept, ~Need.NONE)
        lost = {client for path in plan.paths[len(kept) :] for client in path}
        slow = sorted(lost.difference(*kept.visits)) if self.round % 2 else []
        late = Late.of({client: float(self.seconds([client])[0]) for client in slow})
        return replace(updates, needs=needs, answers=_Noted(updates.answers, self._note), late=late)

    def advance(self, updates: Updates, weights: Tensor) -> None:
        """Add the weighted updates to the global model, in place as an optimizer does, and move on."""
        deltas = self.moved(updates.plan.visits, self.params)
        finite = {name: delta.nan_to_num(0.0, 0.0, 0.0) for name, delta in deltas.items()}
        for name, total in weighted_sum(finite, weights).items():
            self.params[name] += total
        self.round += updates.plan.hops

    def moved(self, paths: Sequence[Sequence[int]], names: Iterable[str]) -> Params:
        """Visit clients in order; one without examples returns the model as it came."""
        start = _flat(self.params)
        ends = start.expand(len(paths), -1)
        hops = torch.from_numpy(np.array(list(zip_longest(*paths, fillvalue=IDLE)), dtype=np.int64))
        paces = torch.where((self.sizes[hops] > 0) & (hops != IDLE), 0.2, 0.0)
        for clients, pace in zip(hops, paces, strict=True):
            ends = ends + pace[:, None] * (self.targets[clients] - ends)
        parts = torch.split(self._spoil(ends - start, [path[-1] for path in paths]), _LENGTHS, dim=1)
        moved = dict(zip(_SHAPES, parts, strict=True))
        return {name: moved[name].reshape(-1, *_SHAPES[name]) for name in names}

    def loss(self, clients: Sequence[int], at: Params) -> Tensor:
        """Return the mean squared distances to the clients' targets."""
        rows = list(clients)
        return self._spoil((self.targets[rows] - _flat(at)).square().double() @ _MEANS, rows)

    def server_loss(self, at: Params) -> float:
        """Return the mean of all clients' losses, as a holdout would estimate it."""
        return float((self.targets - _flat(at)).square().mean(0).double() @ _MEANS)

    def _note(self, need: Need) -> None:
        self.reads |= need

    def _spoil(self, values: Tensor, clients: Sequence[int]) -> Tensor:
        if self.world.poison is not None:
            values[self.poisoned[clients]] = self.world.poison
        return values


class _NotedAnswers:
    """A federation's answers that report which needs they were asked for."""

    def __init__(self, answers: object, note: Callable[[Need], None]) -> None:
        self._answers = answers
        self._note = note

    def __getattr__(self, name: str) -> Any:
        need = "SERVER_LOSS" if name == "server_losses" else name.upper()
        if need in Need.__members__:
            self._note(Need[need])
        return getattr(self._answers, name)


class _Noted(Mapping[str, Any]):
    """Named answers that report which of them were read."""

    def __init__(self, answers: Mapping[str, Any], note: Callable[[Need], None]) -> None:
        self._answers = answers
        self._note = note

    def __getitem__(self, key: str) -> Any:
        self._note(Need[key.upper()])
        return self._answers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)


@functools.cache
def _chances(clients: int, round: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Draw the presence from which on each client is available in a round."""
    return generator(0, "fake-available", round).random(clients)


def _targets(counts: Tensor, *, alike: bool) -> Tensor:
    """Draw every client's target model, flat ``[N, P]``."""
    rng = generator(0, "fake-targets")
    targets = {name: rng.normal(size=(len(counts), *shape)) for name, shape in _SHAPES.items()}
    fractions = (counts + 0.1) / (counts + 0.1).sum(1, keepdim=True)
    stack = {name: torch.from_numpy(value.astype(np.float32)) for name, value in targets.items()}
    flat = flatten(stack | {"head.bias": fractions.log().float()})
    return flat[:1].expand_as(flat) if alike else flat


def _flat(model: Params) -> Tensor:
    """Lay a model out as a row ``[P]``, with zeros for what a selector took out of it."""
    return torch.cat([model.get(name, torch.zeros(shape)).reshape(-1) for name, shape in _SHAPES.items()])
