"""Inspect optimizers, and make others like them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from flsel.local.torch_internals import every_step_is_hooked, step_is_hooked
from flsel.params import Params

_TORCHS = str(Path(torch.optim.__file__).parent)


def groups_of(optimizer: Optimizer, params: Params) -> list[tuple[dict[str, Any], list[str]]]:
    """Return the settings of an optimizer's groups, and the names of the parameters in each.

    Args:
        optimizer: The optimizer.
        params: The parameters that it updates, by name.
    """
    names = {id(param): name for name, param in params.items()}
    return [
        ({k: v for k, v in group.items() if k != "params"}, [names[id(p)] for p in group["params"]])
        for group in optimizer.param_groups
    ]


def made_like(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """Make an optimizer of the same class and settings for other parameters.

    Args:
        optimizer: The optimizer.
        groups: Its groups with the other parameters.
    """
    # Some settings belong to no group: what Adagrad's sums begin with.
    asked = inspect.signature(type(optimizer)).parameters
    settings: dict[str, Any] = {name: value for name, value in optimizer.defaults.items() if name in asked}
    return type(optimizer)(groups, **settings)


def rate_of(optimizer: Optimizer) -> float | None:
    """Return the learning rate if a step is nothing but parameters less that times gradients, else None."""
    group = optimizer.param_groups[0]
    more = any(group.get(key) for key in ("momentum", "weight_decay", "maximize", "differentiable"))
    if type(optimizer) is not SGD or len(optimizer.param_groups) > 1 or more or does_more(optimizer):
        return None
    return float(group["lr"])


def bare_step(optimizer: Optimizer) -> Callable[[], object]:
    """Return what steps an optimizer; for one of torch's own classes without importing ``torch._dynamo``.

    Torch's step imports it to mark where compiled graphs end.
    """
    layers: list[Any] = [type(optimizer).step]
    while hasattr(layers[-1], "__wrapped__"):
        layers.append(layers[-1].__wrapped__)
    torchs = all(inspect.getfile(layer).startswith(_TORCHS) for layer in layers)
    unlike = (
        not torchs
        or every_step_is_hooked()
        or does_more(optimizer)
        or "differentiable" not in optimizer.defaults
    )
    if unlike or "torch._dynamo" in sys.modules:
        return optimizer.step

    def step() -> None:
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            layers[-1](optimizer)

    return step


def clear_gradients(optimizer: Optimizer) -> None:
    """Drop the gradients of an optimizer's parameters without importing ``torch._dynamo`` for it."""
    if _clears_itself(optimizer):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = None


def _clears_itself(optimizer: Optimizer) -> bool:
    return type(optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in vars(optimizer)


def does_more(optimizer: Optimizer) -> bool:
    """Tell whether hooks, or methods of its own, add to what an optimizer's class does in a step."""
    return any(name in vars(optimizer) for name in ("step", "zero_grad")) or step_is_hooked(optimizer)
