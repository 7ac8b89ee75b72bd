"""What a federation does not accept from a selector."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from flsel.errors import UserError, short
from flsel.objectives.objective import Objective, overrides
from flsel.rng import plain_states
from flsel.selector import IDLE, Plan, Selector, View
from flsel.stack import Params

_LOG = logging.getLogger("flsel")
_WATCHED_ROUNDS = 3  # Comparing the generators' states takes a fraction of a millisecond.


@contextmanager
def own_randomness(name: str, round: int) -> Iterator[None]:
    """Warn, in the first rounds, of a selector that draws from a global generator within the block.

    Args:
        name: The selector's name.
        round: Communication round.
    """
    before = _global_states() if round < _WATCHED_ROUNDS else {}
    yield
    if before:
        now = _global_states()
        for owner in (owner for owner in before if now[owner] != before[owner]):
            _warn(name, owner)


@contextmanager
def remembered(selector: Selector, round: int) -> Iterator[None]:
    """Warn, in the first rounds, of what a selector of one's own changes in itself and no checkpoint keeps.

    Args:
        selector: The selector, one of whose methods the block calls.
        round: Communication round.
    """
    watches = round < _WATCHED_ROUNDS and not type(selector).__module__.startswith("flsel.")
    before = _unkept(selector) if watches else {}
    yield
    now = _unkept(selector) if before else {}
    for attribute in (name for name in before if name in now and now[name] != before[name]):
        _warn_unkept(type(selector).__name__, attribute)


@contextmanager
def unwritten(method: str, shown: Iterable[Tensor]) -> Iterator[None]:
    """Refuse what a selector's method writes, within the block, into what it was shown.

    Args:
        method: The selector's name and its method's.
        shown: The tensors, which the round goes on with.

    Raises:
        UserError: If one of them was written to.
    """
    watched = list(shown)
    before = [_trace(tensor) for tensor in watched]
    yield
    if before != [_trace(tensor) for tensor in watched]:
        raise UserError(
            f"{method} writes to what the view or the updates show it; change a copy (tensor.clone())."
        )


@functools.cache  # once for a selector
def _warn(name: str, owner: str) -> None:
    _LOG.warning(
        "%s draws from the global generator of %s, so its runs cannot be repeated or resumed exactly: "
        "draw from view.rng (flsel check)",
        name, owner,
    )  # fmt: skip


@functools.cache  # once for an attribute
def _warn_unkept(name: str, attribute: str) -> None:
    _LOG.warning(
        "%s changes its %s, which checkpoints do not keep, so a resumed run goes another way: call it %s_",
        name, attribute, attribute.rstrip("_"),
    )  # fmt: skip


def _unkept(selector: Selector) -> dict[str, str]:
    """Return what a selector has in attributes that are no state, as texts; large things are left out."""
    plain = (bool, int, float, str, list, tuple, set, dict)
    return {
        name: repr(value)
        for name, value in vars(selector).items()
        if not name.endswith("_")
        and type(value) in plain
        and (not hasattr(value, "__len__") or len(value) < 1000)
    }


def _global_states() -> dict[str, object]:
    """Return the states of the global generators by their owners, to be compared."""
    python, numpys = plain_states()
    return {
        "random": python,
        "numpy.random": numpys,
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def _trace(tensor: Tensor) -> tuple[int, str]:
    """Return what changes when a tensor is written to, by itself or by an array over its memory."""
    # Tensors that were made for inference keep no count of writes; NaN as a text equals itself.
    count = 0 if tensor.is_inference() else tensor._version
    return count, str(tensor.sum().item()) if tensor.device.type == "cpu" else ""


def check_plan(plan: object, view: View, name: str) -> None:
    """Refuse a plan outside the budget, the run or the pool.

    Args:
        plan: What the selector planned.
        view: What it was asked with.
        name: The selector's name, for messages.

    Raises:
        UserError: Naming the selector, the round and the rule.
    """
    if not isinstance(plan, Plan):
        raise UserError(f"{name}.select must return a Plan, such as Plan.star(clients), got {plan!r}.")
    if len(plan) == 0:
        raise UserError(f"{name} planned nobody in round {view.round}; a plan needs at least one path.")
    if len(plan) > view.budget:
        raise UserError(
            f"{name} planned {len(plan)} paths in round {view.round}; the budget is {view.budget}."
        )
    if any(len(path) != plan.hops for path in plan.paths):
        raise UserError(f"{name} planned paths of different lengths in round {view.round}.")
    if not all(plan.visits):
        raise UserError(f"{name} planned a path that visits no client in round {view.round}.")
    if view.round + plan.hops > view.rounds:
        raise UserError(
            f"{name} planned {plan.hops} hops in round {view.round}; the run has {view.rounds} rounds."
        )
    for hop in range(plan.hops):
        free = (view.available if hop == 0 else view.available_at(hop)).numpy()
        for path in plan.paths:
            if path[hop] != IDLE and not (0 <= path[hop] < len(free) and free[path[hop]]):
                raise UserError(
                    f"{name} planned client {path[hop]}, who is not available in round {view.round + hop}."
                )


def check_hops(plan: Plan, objective: Objective, remembers: bool, name: str) -> None:
    """Refuse paths of several clients where something about each of them is kept.

    What an objective or an optimizer remembers is defined by one visit that starts at the global model.

    Raises:
        UserError: Naming the selector and the objective.
    """
    if plan.hops > 1 and overrides(objective, "observe"):
        raise UserError(
            f"objective {type(objective).__name__} keeps state of clients that start from the global model; "
            f"{name} chains {plan.hops} of them: use FedAvg or FedProx."
        )
    if plan.hops > 1 and remembers:
        raise UserError(f"local.keep_optimizer must be false with {name}, which chains {plan.hops} clients.")


def check_aggregate(found: Any, given: Params, name: str) -> Params:
    """Refuse an objective's update of the model that is not like the one it was given.

    Raises:
        UserError: Naming the objective.
    """
    same = isinstance(found, dict) and found.keys() == given.keys()
    if same and all(isinstance(new, Tensor) and new.shape == given[at].shape for at, new in found.items()):
        return dict(found)
    raise UserError(f"{name}.aggregate must return tensors by the names and of the shapes that it was given.")


def check_weights(weights: object, paths: int, name: str) -> Tensor:
    """Refuse weights that are not one finite number >= 0 per path; return them in double precision.

    Raises:
        UserError: Naming the selector.
    """
    if not isinstance(weights, Tensor):
        raise UserError(f"{name}.weigh must return a tensor of {paths} weights, got {weights!r}.")
    if weights.shape == (paths,) and not weights.is_complex():
        found = weights.detach().to("cpu", torch.float64)
        if all(0 <= weight < math.inf for weight in found.tolist()):
            return found
    raise UserError(
        f"{name}.weigh must return {paths} finite weights >= 0, got {short(weights.tolist(), 100)} "
        f"of shape {tuple(weights.shape)}."
    )
