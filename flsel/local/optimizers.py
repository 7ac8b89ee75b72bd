"""Inspect optimizers, make others like them, and keep what a client's remembers between rounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from flsel.errors import UserError
from flsel.local.torch_internals import every_step_is_hooked, step_is_hooked
from flsel.params import Params
from flsel.selector.client_rows import store
from flsel.selector.state import Stateful

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


def bare_step(optimizer: Optimizer) -> Callable[[], object] | None:
    """Return what torch's wrappers call to step an optimizer of torch's own classes; None for another.

    The wrappers import ``torch._dynamo`` to mark where compiled graphs end, and take a tenth of a small
    model's step.
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
    if unlike:
        return None

    def step() -> None:
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            layers[-1](optimizer)

    return step


def bare_clear(optimizer: Optimizer) -> Callable[[], object]:
    """Return what drops the gradients of an optimizer's parameters, without importing ``torch._dynamo``."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in vars(optimizer):
        return optimizer.zero_grad

    def clear() -> None:
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = None

    return clear


def does_more(optimizer: Optimizer) -> bool:
    """Tell whether hooks, or methods of its own, add to what an optimizer's class does in a step."""
    return any(name in vars(optimizer) for name in ("step", "zero_grad")) or step_is_hooked(optimizer)


@final
class OptimizerMemory(Stateful):
    """One optimizer state for every client that ever took part; row 0 is the zero state.

    A visit begins with what the client's last one ended with. It is kept only where the visit's update was
    taken into a round: trial trainings that a selector asks for, and updates that are not finite, leave what
    was there.

    Args:
        clients: N.
        device: Where clients train.
    """

    def __init__(self, clients: int, device: torch.device) -> None:
        self.slots_ = torch.zeros(clients, dtype=torch.int64, device=device)
        self.rows_: Params = {}
        self._ended: dict[int, Params] = {}

    def recall(self, client: int, optimizer: Optimizer) -> None:
        """Put a client's state into an optimizer that has none; one that never took part has no state."""
        slot = int(self.slots_[client])
        for name, param in _named(optimizer) if slot else ():
            kept = {key: rows[slot].clone() for key, rows in _below(name, self.rows_)}
            if kept:
                optimizer.state[param] = kept

    def note(self, client: int, optimizer: Optimizer) -> None:
        """Copy the state that a visit ended with."""
        self._ended[client] = {
            f"{name}/{key}": value.detach().clone()
            for name, param in _named(optimizer)
            for key, value in optimizer.state[param].items()
            if isinstance(value, Tensor)
        }

    def forget(self) -> None:
        """Drop what was noted of visits that belong to no round."""
        self._ended.clear()

    def keep(self, clients: Iterable[int]) -> None:
        """Keep what was noted of these clients, each once, and drop the rest."""
        ended = [(client, self._ended[client]) for client in clients if self._ended.get(client)]
        self.forget()
        if ended:
            values = {
                name: torch.stack([state[name].to(self.slots_.device) for _, state in ended])
                for name in ended[0][1]
            }
            store(self.slots_, self.rows_, torch.tensor([client for client, _ in ended]), values)


def check_remembers(optimizer: Optimizer) -> None:
    """Refuse a local optimizer that has nothing to remember.

    Raises:
        UserError: If it is SGD without momentum.
    """
    if isinstance(optimizer, SGD) and not any(group["momentum"] for group in optimizer.param_groups):
        raise UserError(
            "local.keep_optimizer must be false for SGD without momentum, which remembers nothing; set "
            "local.optimizer.momentum."
        )


def _named(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Name an optimizer's parameters by their places, the same in every run of a config."""
    for group, settings in enumerate(optimizer.param_groups):
        for place, param in enumerate(settings["params"]):
            yield f"{group}.{place}", param


def _below(name: str, rows: Params) -> Iterator[tuple[str, Tensor]]:
    prefix = f"{name}/"
    return ((key.removeprefix(prefix), value) for key, value in rows.items() if key.startswith(prefix))
