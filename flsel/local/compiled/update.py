"""The optimizer's update as part of the replayed step: SGD is written out, others step by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from flsel.local.compiled.record_graph import Recording, root
from flsel.local.compiled.replay import FlatCode
from flsel.local.torch_internals import foreach_add_, foreach_mul, foreach_mul_

aten = torch.ops.aten


@dataclass(frozen=True)
class Settings:
    """What SGD does with a group of parameters."""

    lr: float
    momentum: float
    dampening: float
    decay: float
    nesterov: bool
    maximize: bool

    def numbers(self, factor: float, first: bool) -> list[float]:
        """Return what a step multiplies with.

        Args:
            factor: On the learning rate, of the communication round.
            first: Whether it is the visit's first step, which no momentum precedes.

        Returns:
            What gradients are added to parameters with; what is left of parameters; what velocities,
            gradients to velocities, parameters to velocities, and velocities to parameters are added with.
        """
        rate, sign = self.lr * factor, -1.0 if self.maximize else 1.0
        take = 1.0 if first else 1.0 - self.dampening
        back = -rate * (self.momentum if self.nesterov else 1.0)
        return [-rate * sign, 1.0 - rate * self.decay, self.momentum, take * sign, take * self.decay, back]


def sgd_settings(group: dict[str, Any]) -> Settings:
    """Read the settings of an optimizer's group."""
    return Settings(
        lr=float(group["lr"]),
        momentum=float(group["momentum"]),
        dampening=float(group["dampening"]),
        decay=float(group["weight_decay"]),
        nesterov=bool(group["nesterov"]),
        maximize=bool(group["maximize"]),
    )


def copy_parameters(module: Recording, params: int) -> None:
    """Let gradients that are parameters themselves be copies: an update would change what others still need.

    In a product of two parameters, each is the gradient of the other.

    Args:
        module: Its outputs are gradients; it is changed in place.
        params: Number of its first inputs that are parameters.
    """
    graph = module.graph
    places = set([node for node in graph.nodes if node.op == "placeholder"][:params])
    end = graph.output_node()
    gradients: list[Any] = list(end.args[0])  # type: ignore[arg-type]
    for i, node in enumerate(gradients):
        if root(node) in places:
            with graph.inserting_before(end):
                gradients[i] = graph.call_function(aten.clone.default, (node,))
            gradients[i].meta = dict(node.meta)
    end.args = (tuple(gradients),)


@dataclass(frozen=True)
class Member:
    """One parameter with its gradient."""

    param: Tensor
    velocity: Tensor | None
    gradient: fx.Node


class Sums:
    """Writes sums and products with numbers that are the code's own arguments."""

    def __init__(self, flat: FlatCode) -> None:
        self.flat = flat

    def number(self, name: str) -> fx.Node:
        """Name a number."""
        return self.flat.number(name)

    def add(self, values: list[fx.Node], others: list[Any], by: fx.Node) -> None:
        """Add others times a number."""
        if len(values) == 1:
            self.flat.code.call_method("add_", (values[0], others[0]), {"alpha": by})
        elif values:
            self.flat.code.call_function(foreach_add_, (values, others), {"alpha": by})

    def scale(self, values: list[fx.Node], by: fx.Node) -> None:
        """Multiply with a number."""
        if values:
            self.flat.code.call_function(foreach_mul_, (values, by))


class DeviceSums(Sums):
    """The same with numbers that lie on the device, where a recorded step reads them anew.

    Args:
        flat: The code that is written.
        numbers: Their memory, ``[k]``, in the order in which they are named.
    """

    def __init__(self, flat: FlatCode, numbers: Tensor) -> None:
        super().__init__(flat)
        self._rest = iter(numbers.unbind(0))

    def number(self, name: str) -> fx.Node:
        """Name a number."""
        return self.flat.given(next(self._rest))

    def add(self, values: list[fx.Node], others: list[Any], by: fx.Node) -> None:
        """Add others times a number."""
        if values:
            scaled = self.flat.code.call_function(foreach_mul, (others, by))
            self.flat.code.call_function(foreach_add_, (values, scaled))


def emit_sgd(sums: Sums, index: int, settings: Settings, members: list[Member]) -> list[str]:
    """Write the update of one group; return the names of the numbers that it takes."""
    names = [f"{what}_{index}" for what in ("rate", "shrink", "keep", "take", "pull", "back")]
    rate, shrink, keep, take, pull, back = (sums.number(name) for name in names)
    params = [sums.flat.given(m.param) for m in members]
    grads = [sums.flat.argument(m.gradient) for m in members]
    if not settings.momentum:
        if settings.decay:
            sums.scale(params, shrink)
        sums.add(params, grads, rate)
        return names
    velocities = [sums.flat.given(m.velocity) for m in members]  # type: ignore[arg-type]
    sums.scale(velocities, keep)
    sums.add(velocities, grads, take)
    if settings.decay:
        sums.add(velocities, params, pull)
    if settings.nesterov:
        if settings.decay:
            sums.scale(params, shrink)
        sums.add(params, grads, rate)
    sums.add(params, velocities, back)
    return names
