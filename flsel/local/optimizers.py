"""Optimizers without what torch imports for them: its compiler, which takes longer than a small run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import SGD, Optimizer

from flsel.stack import Params

_NAMES = ("add_param_group", "state_dict", "load_state_dict")
_GUARDED: dict[str, Any] = {name: vars(Optimizer)[name] for name in _NAMES}


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let optimizers be made, saved and restored without importing ``torch._dynamo``.

    They import it to keep some methods out of what ``torch.compile`` compiles. Where nothing has imported it,
    nothing is being compiled.
    """
    bare = {name: getattr(method, "__wrapped__", method) for name, method in _GUARDED.items()}
    _set(_GUARDED if "torch._dynamo" in sys.modules else bare)
    try:
        yield
    finally:
        _set(_GUARDED)


def _set(methods: dict[str, Any]) -> None:
    for name, method in methods.items():
        setattr(Optimizer, name, method)


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


def does_more(optimizer: Optimizer) -> bool:
    """Tell whether hooks, or a step of its own, add something to what an optimizer's class does in a step."""
    own = vars(optimizer)
    return "step" in own or any(own.get(f"_optimizer_step_{when}_hooks") for when in ("pre", "post"))
