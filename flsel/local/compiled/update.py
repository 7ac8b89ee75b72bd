"""The optimizer's update as part of the replayed step: SGD is written out, others step by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from flsel.local.compiled.fuse_graph import shape_of
from flsel.local.compiled.record_graph import root
from flsel.local.compiled.replay import FlatCode
from flsel.local.torch_internals import foreach_add_, foreach_mul, foreach_mul_

aten = torch.ops.aten

_ADDS = {aten.bmm.default: ("baddbmm_", 3), aten.mm.default: ("addmm_", 2)}


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


@dataclass
class FusedGradient:
    """A gradient that its matrix product adds to the parameter (or its velocity) itself."""

    target: Tensor
    left: fx.Node
    right: fx.Node


def copy_parameters(module: fx.GraphModule, params: int) -> None:
    """Let gradients that are parameters themselves be copies: an update would change what others still need.

    So is each factor of a product the other's gradient.

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


def split_late(
    module: fx.GraphModule, params: int, targets: list[Tensor | None]
) -> tuple[fx.GraphModule, list[FusedGradient | None]]:
    """Take the products out of a graph that are nothing but a gradient.

    Args:
        module: Its outputs are gradients.
        params: Number of its first inputs that are parameters.
        targets: What each gradient may be added to, or None.

    Returns:
        The graph, whose outputs are now the gradients that are left and the factors of the others; and for
        each gradient how it is added, or None.
    """
    graph = module.graph
    changing = set([node for node in graph.nodes if node.op == "placeholder"][:params])
    gradients = list(graph.output_node().args[0])  # type: ignore[arg-type]
    late = [
        None if target is None else _late(node, target, changing, gradients)
        for node, target in zip(gradients, targets, strict=True)
    ]
    left = [node for node, how in zip(gradients, late, strict=True) if how is None]
    factors = [factor for how in late if how is not None for factor in (how.left, how.right)]
    graph.output_node().args = (tuple([*left, *factors]),)
    graph.eliminate_dead_code()
    module.recompile()
    return module, late


def _late(node: Any, target: Tensor, params: set[fx.Node], gradients: list[Any]) -> FusedGradient | None:
    product, value = node, target
    if node.target is aten.transpose.int and set(node.args[1:]) in ({1, 2}, {0, 1}):
        product = node.args[0]
        value = target.transpose(*node.args[1:])
    if product.target not in _ADDS or target.ndim != _ADDS[product.target][1]:
        return None
    if len(product.users) > 1 or len(node.users) > 1 or gradients.count(node) > 1:
        return None
    left, right = product.args
    # The update must not change what another late product still reads.
    if root(left) in params or root(right) in params or shape_of(product) != tuple(value.shape):
        return None
    return FusedGradient(value, left, right)


@dataclass(frozen=True)
class Member:
    """One parameter with its gradient."""

    param: Tensor
    velocity: Tensor | None
    gradient: fx.Node | None
    late: FusedGradient | None


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

    def add_product(self, late: FusedGradient, keep: fx.Node | None, by: fx.Node) -> None:
        """Keep so much of a target, and add a product of matrices times a number."""
        kwargs: dict[str, Any] = {"alpha": by} if keep is None else {"beta": keep, "alpha": by}
        args = (self.flat.given(late.target), self.flat.argument(late.left), self.flat.argument(late.right))
        self.flat.code.call_method(_method(late), args, kwargs)


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

    def add_product(self, late: FusedGradient, keep: fx.Node | None, by: fx.Node) -> None:
        """Keep so much of a target, and add a product of matrices times a number."""
        code, target = self.flat.code, self.flat.given(late.target)
        left = code.call_function(torch.mul, (self.flat.argument(late.left), by))
        if keep is not None:
            code.call_method("mul_", (target, keep))
        code.call_method(_method(late), (target, left, self.flat.argument(late.right)))


def _method(late: FusedGradient) -> str:
    return "baddbmm_" if late.target.ndim == 3 else "addmm_"


def emit_sgd(sums: Sums, index: int, settings: Settings, members: list[Member]) -> list[str]:
    """Write the update of one group; return the names of the numbers that it takes."""
    names = [f"{what}_{index}" for what in ("rate", "shrink", "keep", "take", "pull", "back")]
    rate, shrink, keep, take, pull, back = (sums.number(name) for name in names)
    flat = sums.flat
    early = [m for m in members if m.late is None]
    params = [flat.given(m.param) for m in early]
    grads = [flat.argument(m.gradient) for m in early]
    products = [m.late for m in members if m.late is not None]
    if not settings.momentum:
        for late in products:
            sums.add_product(late, shrink if settings.decay else None, rate)
        if settings.decay:
            sums.scale(params, shrink)
        sums.add(params, grads, rate)
        return names
    velocities = [flat.given(m.velocity) for m in early]  # type: ignore[arg-type]
    for late in products:
        sums.add_product(late, keep, take)
    sums.scale(velocities, keep)
    sums.add(velocities, grads, take)
    every = [flat.given(m.param) for m in members]
    moved = [flat.given(m.velocity) for m in members]  # type: ignore[arg-type]
    if settings.decay:
        sums.add(moved, every, pull)
    if settings.nesterov:
        if settings.decay:
            sums.scale(params, shrink)
        sums.add(params, grads, rate)
    sums.add(every, moved, back)
    return names
