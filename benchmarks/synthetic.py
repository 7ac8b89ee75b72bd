"""Clients that answer and train by formula: what a selector sees of a federation, at no cost worth timing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from flsel.params import Params
from flsel.rng import generator
from flsel.testing.formula import FormulaFederation

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


class Synthetic(FormulaFederation):
    """Clients of many kinds, mixed by their labels: an update is the mix of the kinds' updates plus noise.

    Everybody is always available. The server's loss falls with every question, so that FedPNS removes as
    many updates as it may.

    Args:
        clients: N.
        shapes: Of the model's parameters.
        clients_per_round: K.
        rounds: Communication rounds of the run.
    """

    def __init__(
        self, clients: int, shapes: dict[str, tuple[int, ...]], clients_per_round: int, rounds: int
    ) -> None:
        rng = generator(0, "benchmark")
        sizes = 20 + rng.lognormal(3.0, 1.0, clients).astype(np.int64)
        shares = rng.dirichlet(np.full(CLASSES, 0.3), clients)
        counts = torch.from_numpy(rng.multinomial(sizes, shares))
        params = {name: torch.zeros(shape) for name, shape in shapes.items()}
        super().__init__(counts, params, clients_per_round=clients_per_round, rounds=rounds)
        mix = shares @ rng.normal(size=(CLASSES, _KINDS))
        self.mix = torch.from_numpy(mix.astype(np.float32))
        draw = torch.Generator().manual_seed(0)
        self.kinds = {
            name: torch.randn((_KINDS, *shape), generator=draw) * 0.01 for name, shape in shapes.items()
        }
        self.asked = 0

    def moved(self, paths: Sequence[Sequence[int]], names: Iterable[str]) -> Params:
        mix = self.mix[[path[0] for path in paths]]
        draw = torch.Generator().manual_seed(self.round)
        mix = mix + 0.1 * torch.randn(mix.shape, generator=draw)
        return {name: torch.tensordot(mix, self.kinds[name], dims=1) for name in names}

    def loss(self, clients: Sequence[int], at: Params) -> Tensor:
        better = 0.0 if at is self.params else 1e-2
        noise = generator(0, "losses", self.round).normal(scale=0.05, size=len(self.sizes))
        level = 2.0 / (1 + self.round) - better + 0.1 * self.mix[:, 0].double() + torch.from_numpy(noise)
        return level[torch.as_tensor(clients)]

    def server_loss(self, at: Params) -> float:
        self.asked += 1
        return -float(self.asked)
