"""The optimizer's update as part of the replayed step: SGD is written out, others step by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from flsel.local.compiled.refuse import root
from flsel.local.compiled.replay import Plan
from flsel.local.compiled.tidy import shape_of

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
class Late:
    """A gradient that its matrix product adds to the parameter (or its velocity) itself."""

    target: Tensor
    left: fx.Node
    right: fx.Node


def split_late(
    module: fx.GraphModule, params: int, targets: list[Tensor | None]
) -> tuple[fx.GraphModule, list[Late | None]]:
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


def _late(node: Any, target: Tensor, params: set[fx.Node], gradients: list[Any]) -> Late | None:
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
    return Late(value, left, right)


@dataclass(frozen=True)
class Member:
    """One parameter with its gradient."""

    param: Tensor
    velocity: Tensor | None
    gradient: fx.Node | None
    late: Late | None


def emit_sgd(plan: Plan, index: int, settings: Settings, members: list[Member]) -> list[str]:
    """Write the update of one group; return the names of the numbers that it takes."""
    names = [f"{what}_{index}" for what in ("rate", "shrink", "keep", "take", "pull", "back")]
    rate, shrink, keep, take, pull, back = (plan.number(name) for name in names)
    early = [m for m in members if m.late is None]
    params = [plan.given(m.param) for m in early]
    grads = [plan.argument(m.gradient) for m in early]
    code = plan.code
    if not settings.momentum:
        for m in members:
            if m.late is not None:
                _add_product(plan, m.late, beta=shrink if settings.decay else None, alpha=rate)
        if early and settings.decay:
            code.call_function(torch._foreach_mul_, (params, shrink))
        if early:
            code.call_function(torch._foreach_add_, (params, grads), {"alpha": rate})
        return names
    velocities = [plan.given(m.velocity) for m in early]  # type: ignore[arg-type]
    for m in members:
        if m.late is not None:
            _add_product(plan, m.late, beta=keep, alpha=take)
    if early:
        code.call_function(torch._foreach_mul_, (velocities, keep))
        code.call_function(torch._foreach_add_, (velocities, grads), {"alpha": take})
    every = [plan.given(m.param) for m in members]
    moved = [plan.given(m.velocity) for m in members]  # type: ignore[arg-type]
    if settings.decay:
        code.call_function(torch._foreach_add_, (moved, every), {"alpha": pull})
    if settings.nesterov:
        if settings.decay:
            code.call_function(torch._foreach_mul_, (params, shrink))
        code.call_function(torch._foreach_add_, (params, grads), {"alpha": rate})
    code.call_function(torch._foreach_add_, (every, moved), {"alpha": back})
    return names


def _add_product(plan: Plan, late: Late, beta: fx.Node | None, alpha: fx.Node) -> None:
    method = "baddbmm_" if late.target.ndim == 3 else "addmm_"
    kwargs: dict[str, Any] = {"alpha": alpha} if beta is None else {"beta": beta, "alpha": alpha}
    args = (plan.given(late.target), plan.argument(late.left), plan.argument(late.right))
    plan.code.call_method(method, args, kwargs)
