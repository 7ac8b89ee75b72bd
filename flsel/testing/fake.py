"""A tiny federation in memory for the contract checks: no dataset, no training, everything a formula.

Each client pulls the model towards a target of its own, whose output bias follows the client's labels:
training moves a model a fifth of the way, and the loss is the mean squared distance to the target.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.rng import generator
from flsel.selector import Need, Plan, Updates, View
from flsel.stack import Params

_SHAPES = {"body.weight": (5, 3), "head.weight": (4, 5), "head.bias": (4,)}
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
        budget: Most paths per round.
        seed: Seed of the selector's draws only.
        rounds: Communication rounds of the run.
        presence: Chance of a client to be available in a round; one client always is.
        alike: Whether all clients have the same target.
        poison: Number that poisoned clients report instead of losses and updates; None for none.
        poisoned: Share of clients that are poisoned.
        lose: Whether each round's last update is lost.
        head_bias: Whether the output layer has a bias.
    """

    counts: Tensor
    budget: int
    seed: int = 0
    rounds: int = 12
    presence: float = 0.7
    alike: bool = False
    poison: float | None = None
    poisoned: float = 0.3
    lose: bool = False
    head_bias: bool = True


class FakeFederation:
    """A federation that plays rounds step by step and notes which information was read."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sizes = world.counts.sum(1)
        self.poisoned = torch.arange(len(world.counts)) < world.poisoned * len(world.counts)
        self.targets = _targets(world.counts, alike=world.alike)
        self.params = {name: torch.zeros(shape) for name, shape in _SHAPES.items()}
        self.round = 0
        self.reads = Need.NONE

    def view(self, needs: Need) -> View:
        """Return the view of the coming round; ``available`` and the tensors of ``params`` are live."""
        return View(
            round=self.round,
            rounds=self.world.rounds,
            budget=self.world.budget,
            available=self.available(self.round),
            sizes=self.sizes,
            num_classes=self.world.counts.shape[1],
            params=dict(self.params),
            rng=generator(self.world.seed, "select", self.round),
            ledger=Counter(),
            needs=needs,
            answers=self,
        )

    def available(self, round: int) -> Tensor:
        """Tell who is available in a round, bool ``[N]``."""
        present = torch.from_numpy(generator(0, "fake-available", round).random(len(self.world.counts)))
        available = present < self.world.presence
        available[round % len(available)] = True
        return available

    def updates(self, plan: Plan, needs: Need) -> Updates:
        """Train along the paths of a plan and return what the selector may see."""
        kept = Plan(plan.paths[:-1]) if self.world.lose and len(plan) > 1 else plan
        stacks = [self._deltas(clients) for clients in kept.visits]
        deltas = {name: torch.stack([stack[name] for stack in stacks]) for name in self.params}
        head = {"weight": deltas["head.weight"].clone(), "bias": deltas["head.bias"].clone()}
        if not self.world.head_bias:
            del head["bias"]
        first = [clients[0] for clients in kept.visits]
        own_loss = self._losses(first, self.params).masked_fill(self.sizes[first] == 0, math.nan)
        sizes = torch.stack([self.sizes[list(clients)].sum() for clients in kept.visits])
        answers = {"own_loss": own_loss, "head": head, "deltas": deltas}
        return Updates(kept, sizes, 1 + sizes // 10, needs, _Noted(answers, self._note))

    def advance(self, updates: Updates, weights: Tensor) -> None:
        """Add the weighted updates to the global model, in place as an optimizer does, and move on."""
        deltas = [self._deltas(clients) for clients in updates.plan.visits]
        for name, value in self.params.items():
            stack = torch.stack([delta[name] for delta in deltas]).nan_to_num(0.0, 0.0, 0.0)
            value += torch.tensordot(weights.to(stack), stack, dims=1)
        self.round += updates.plan.hops

    def labels(self) -> Tensor:
        """Return the label counts."""
        self._note(Need.LABELS)
        return self.world.counts

    def losses(self, clients: Sequence[int], at: Params | None) -> Tensor:
        """Return the clients' losses; NaN for those unavailable or without examples."""
        self._note(Need.LOSSES)
        losses = self._losses(clients, self.params if at is None else at)
        silent = ~self.available(self.round) | (self.sizes == 0)
        return losses.masked_fill(silent[list(clients)], math.nan)

    def shadow(self, clients: Sequence[int]) -> Params:
        """Return the end models of the clients' training."""
        self._note(Need.SHADOW)
        absent = [client for client in clients if not self.available(self.round)[client]]
        assert not absent, f"shadow training may only ask available clients, got {absent}"
        ends = [self._deltas((client,)) for client in clients]
        return {name: torch.stack([end[name] + start for end in ends]) for name, start in self.params.items()}

    def server_loss(self, at: Params) -> float:
        """Return the mean of all clients' losses, as a holdout would estimate it."""
        self._note(Need.SERVER_LOSS)
        distances = [(self.targets[name] - value).square().flatten(1).mean(1) for name, value in at.items()]
        return float(torch.stack(distances).mean())

    def gradients(self, clients: Sequence[int]) -> Params:
        """Return the gradients of half the squared distances to the targets; NaN without examples."""
        self._note(Need.GRADIENTS)
        absent = [client for client in clients if not self.available(self.round)[client]]
        assert not absent, f"gradients may only be asked of available clients, got {absent}"
        rows = torch.tensor(clients, dtype=torch.int64)
        empty = (self.sizes[rows] == 0).view(-1, 1)
        return {
            name: self._spoil((value - self.targets[name][rows]).flatten(1), rows)
            .masked_fill(empty, math.nan)
            .view(-1, *value.shape)
            for name, value in self.params.items()
        }

    def noise_outputs(self, models: Params) -> Tensor:
        """Return the outputs of the models' last layer on a vector of ones, float64 ``[n, C]``."""
        self._note(Need.NOISE_OUTPUTS)
        return (models["head.weight"].sum(2) + models["head.bias"]).double()

    def available_at(self, hop: int) -> Tensor:
        """Tell who is available ``hop`` rounds from now."""
        return self.available(self.round + hop)

    def _note(self, need: Need) -> None:
        self.reads |= need

    def _losses(self, clients: Sequence[int], at: Params) -> Tensor:
        rows = list(clients)
        distances = [
            (self.targets[name][rows] - value).square().flatten(1).mean(1).double()
            for name, value in at.items()
        ]
        return self._spoil(torch.stack(distances).mean(0), torch.tensor(rows, dtype=torch.int64))

    def _deltas(self, clients: Sequence[int]) -> Params:
        """Visit clients in order; one without examples returns the model as it came."""
        end = {name: value.clone() for name, value in self.params.items()}
        for client in clients:
            pace = 0.2 if self.sizes[client] > 0 else 0.0
            for name, value in end.items():
                value += pace * (self.targets[name][client] - value)
        last = torch.tensor([clients[-1]])
        return {name: self._spoil((end[name] - self.params[name])[None], last)[0] for name in end}

    def _spoil(self, values: Tensor, clients: Tensor) -> Tensor:
        if self.world.poison is None:
            return values
        hit = self.poisoned[clients].view(-1, *[1] * (values.ndim - 1))
        return values.masked_fill(hit, self.world.poison)


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


def _targets(counts: Tensor, *, alike: bool) -> Params:
    """Draw every client's target model, a stack ``[N, ...]``."""
    rng = generator(0, "fake-targets")
    targets = {
        name: torch.from_numpy(rng.normal(size=(len(counts), *shape)).astype(np.float32))
        for name, shape in _SHAPES.items()
    }
    fractions = (counts + 0.1) / (counts + 0.1).sum(1, keepdim=True)
    targets["head.bias"] = fractions.log().float()
    return {name: value[:1].expand_as(value) if alike else value for name, value in targets.items()}
