"""Clients that answer and train by formula: what a selector sees of a federation, at no cost worth timing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.rng import generator
from flsel.selector import Need, Plan, Updates, View
from flsel.stack import Params

MLP = {
    "body.0.weight": (64, 784),
    "body.0.bias": (64,),
    "body.1.weight": (30, 64),
    "body.1.bias": (30,),
    "head.weight": (10, 30),
    "head.bias": (10,),
}
"""Shapes of the parameters of the MLP 784-64-30-10: 52,500 numbers."""
LOGISTIC = {"head.weight": (10, 60), "head.bias": (10,)}
"""Shapes of a logistic regression on 60 features: 610 numbers."""
CLASSES = 10
_KINDS = 16


class Synthetic:
    """Clients of many kinds, mixed by their labels: an update is the mix of the kinds' updates plus noise.

    Everybody is always available. The server's loss falls with every question, so that FedPNS removes as
    many updates as it may.

    Args:
        clients: N.
        shapes: Of the model's parameters.
        budget: K.
        rounds: Communication rounds of the run.
    """

    def __init__(self, clients: int, shapes: dict[str, tuple[int, ...]], budget: int, rounds: int) -> None:
        rng = generator(0, "benchmark")
        self.sizes = torch.from_numpy(20 + rng.lognormal(3.0, 1.0, clients).astype(np.int64))
        shares = rng.dirichlet(np.full(CLASSES, 0.3), clients)
        self.counts = torch.from_numpy(rng.multinomial(self.sizes.numpy(), shares))
        mix = shares @ rng.normal(size=(CLASSES, _KINDS))
        self.mix = torch.from_numpy(mix.astype(np.float32))
        draw = torch.Generator().manual_seed(0)
        self.kinds = {
            name: torch.randn((_KINDS, *shape), generator=draw) * 0.01 for name, shape in shapes.items()
        }
        self.params = {name: torch.zeros(shape) for name, shape in shapes.items()}
        self.budget = budget
        self.rounds = rounds
        self.round = 0
        self.asked = 0

    def view(self, needs: Need) -> View:
        """Return the view of the present round."""
        return View(
            round=self.round,
            rounds=self.rounds,
            budget=self.budget,
            available=torch.ones(len(self.sizes), dtype=torch.bool),
            sizes=self.sizes,
            num_classes=CLASSES,
            params=self.params,
            rng=generator(0, "select", self.round),
            ledger=Counter(),
            needs=needs,
            answers=self,
        )

    def updates(self, plan: Plan, needs: Need) -> Updates:
        """Return what a plan's paths bring back, as far as it is asked for."""
        first = [visits[0] for visits in plan.visits]
        answers: dict[str, Any] = {"own_loss": self.losses(first, None)}
        if needs & (Need.DELTAS | Need.HEAD):
            names = self.params if Need.DELTAS in needs else ("head.weight", "head.bias")
            answers["deltas"] = self._deltas(first, names)
            answers["head"] = {key: answers["deltas"][f"head.{key}"] for key in ("weight", "bias")}
        sizes = torch.tensor([int(self.sizes[list(visits)].sum()) for visits in plan.visits])
        return Updates(plan, sizes, 1 + sizes // 10, needs, answers)

    def labels(self) -> Tensor:
        return self.counts

    def losses(self, clients: Sequence[int], at: Params | None) -> Tensor:
        moved = 0.0 if at is None else 1e-2
        noise = generator(0, "losses", self.round).normal(scale=0.05, size=len(self.sizes))
        level = 2.0 / (1 + self.round) - moved + 0.1 * self.mix[:, 0].double() + torch.from_numpy(noise)
        return level[torch.as_tensor(clients)]

    def shadow(self, clients: Sequence[int]) -> Params:
        return self._deltas(clients, self.params)

    def server_loss(self, at: Params) -> float:
        self.asked += 1
        return -float(self.asked)

    def gradients(self, clients: Sequence[int]) -> Params:
        return self._deltas(clients, self.params)

    def noise_outputs(self, models: Params) -> Tensor:
        return models["head.bias"].double()

    def available_at(self, hop: int) -> Tensor:
        return torch.ones(len(self.sizes), dtype=torch.bool)

    def _deltas(self, clients: Sequence[int], names: Sequence[str] | Params) -> Params:
        mix = self.mix[torch.as_tensor(clients)]
        draw = torch.Generator().manual_seed(self.round)
        mix = mix + 0.1 * torch.randn(mix.shape, generator=draw)
        return {name: torch.tensordot(mix, self.kinds[name], dims=1) for name in names}
