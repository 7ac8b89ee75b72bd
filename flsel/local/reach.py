"""Compute the factor that turns an update of local SGD back into a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from flsel.errors import UserError
from flsel.local.optimizers import groups_of
from flsel.params import Params


@final
class Reach:
    """Tell how far a constant gradient of one moves each trainable parameter in a visit.

    For plain SGD that is the learning rate times the number of steps; with momentum it is what the optimizer
    does, so that an update divided by its reach is a weighted mean of the gradients on the way.

    Args:
        optimizer: The local optimizer; its settings are copied.
        params: The parameters that it updates, by name.
        lr_factors: Factor on the local learning rate for every communication round.
    """

    def __init__(self, optimizer: Optimizer, params: Params, lr_factors: Sequence[float]) -> None:
        self._kind = type(optimizer).__name__
        self._linear = isinstance(optimizer, SGD)
        self._groups = groups_of(optimizer, params)
        sizes = [sum(p.numel() for p in group["params"]) for group in optimizer.param_groups]
        self._main = self._groups[sizes.index(max(sizes))][0]
        self._units = torch.zeros(1, dtype=torch.float64)
        self._lr_factors = lr_factors
        self._tables = [torch.zeros(1, dtype=torch.float64) for _ in self._groups]

    def check(self) -> None:
        """Refuse an optimizer whose moves are not in proportion to the gradient.

        Raises:
            UserError: If it is not SGD.
        """
        if not self._linear:
            raise UserError(f"local.optimizer must be torch.optim.SGD for this objective, got {self._kind}.")

    def __call__(self, round: int, steps: Tensor) -> Params:
        """Return the reach by name of parameter.

        Args:
            round: Communication round.
            steps: Local steps of K visits, int64 ``[K]``.

        Returns:
            Float64 ``[K]`` each, >= 0; zero without steps.

        Raises:
            UserError: If the optimizer is not SGD.
        """
        self.check()
        reach: Params = {}
        for index, (settings, names) in enumerate(self._groups):
            if len(self._tables[index]) <= int(steps.max()):
                self._tables[index] = _travel(settings, int(steps.max()))
            reach |= dict.fromkeys(names, self._tables[index][steps] * self._lr_factors[round])
        return reach

    def travel(self, steps: Tensor) -> Tensor:
        """Tell how far a constant gradient comes in units of a visit's first step.

        Args:
            steps: Local steps of K visits, int64 ``[K]``.

        Returns:
            Float64 ``[K]``, of the group with the most parameters; the number of steps for an optimizer other
            than SGD.
        """
        if not self._linear:
            return steps.double()
        if len(self._units) <= int(steps.max()):
            # At a learning rate of one: plain SGD's steps are then exact.
            self._units = _travel({**self._main, "lr": 1.0}, max(int(steps.max()), 1))
        return self._units[steps] / self._units[1]


def _travel(settings: dict[str, Any], steps: int) -> Tensor:
    """Return how far a scalar has come after 0..steps steps with a gradient of one, float64."""
    place = nn.Parameter(torch.zeros((), dtype=torch.float64))
    place.grad = torch.ones_like(place)
    plain = {"weight_decay": 0.0, "foreach": False, "fused": False}
    optimizer = SGD([{**settings, **plain, "params": [place]}], lr=0.0)
    come = [0.0]
    for _ in range(steps):
        optimizer.step()
        come.append(-float(place.detach()))
    return torch.tensor(come, dtype=torch.float64)
