"""Check plans, weights and updates against the contract."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from flsel.errors import UserError, short
from flsel.objectives.objective import Objective, overrides
from flsel.params import Params
from flsel.selector import IDLE, Plan, Selector, View


def check_plan(plan: object, view: View, name: str) -> None:
    """Refuse a plan with too many paths or hops, or with unavailable clients, or none where some are there.

    Raises:
        UserError: Naming the selector, the round and the rule.
    """
    if not isinstance(plan, Plan):
        raise UserError(f"{name}.select must return a Plan, such as Plan.star(clients), got {plan!r}.")
    if len(plan) == 0 and not bool(view.available.any()):
        return
    if len(plan) == 0:
        raise UserError(
            f"{name} returned an empty plan in round {view.round}; a plan needs at least one path."
        )
    if len(plan) > view.clients_per_round:
        raise UserError(
            f"{name} planned {len(plan)} paths in round {view.round}; "
            f"clients_per_round is {view.clients_per_round}."
        )
    if any(len(path) != plan.hops for path in plan.paths):
        raise UserError(f"{name} planned paths of different lengths in round {view.round}.")
    if not all(plan.visits):
        raise UserError(f"{name} planned a path that visits no client in round {view.round}.")
    rounds = vars(view)["rounds"]  # which does not count as read by the selector
    if view.round + plan.hops > rounds:
        raise UserError(
            f"{name} planned {plan.hops} hops in round {view.round}; the run has {rounds} rounds."
        )
    for hop in range(plan.hops):
        free = (view.available if hop == 0 else view.available_at(hop)).numpy()
        for path in plan.paths:
            if path[hop] != IDLE and not (0 <= path[hop] < len(free) and free[path[hop]]):
                raise UserError(
                    f"{name} planned client {path[hop]}, who is not available in round {view.round + hop}."
                )


def check_flights(plan: object, view: View, name: str) -> None:
    """Refuse a plan for more slots than are free, of several hops, or with a client twice.

    Raises:
        UserError: As :func:`check_plan`.
    """
    free = view.clients_per_round
    if isinstance(plan, Plan) and len(plan) > free:
        raise UserError(
            f"{name} planned {len(plan)} clients in round {view.round}, where "
            f"view.clients_per_round, the free slots, is {free}."
        )
    check_plan(plan, view, name)
    assert isinstance(plan, Plan)
    if plan.hops > 1:
        raise UserError(
            f"asynchronous.concurrency must be null with {name}, which chains {plan.hops} clients: only "
            "plans of one hop are asynchronous."
        )
    clients = [path[0] for path in plan.paths]
    twice = next((client for client in clients if clients.count(client) > 1), None)
    if twice is not None:
        raise UserError(
            f"{name} planned client {twice} twice in round {view.round}; in an asynchronous run a client "
            "trains one model at a time."
        )


def check_asynchronous(selector: Selector, objective: Objective, *, remembers: bool) -> None:
    """Refuse, before an asynchronous run starts, methods that need a common start or a joint cohort.

    Args:
        selector: Who fills the slots.
        objective: What clients minimise.
        remembers: Whether clients keep their optimizers.

    Raises:
        UserError: Naming what is refused and why.
    """
    key, name = "asynchronous.concurrency must be null with", type(objective).__name__
    if selector.only_synchronous:
        raise UserError(f"{key} {type(selector).__name__}, since {selector.only_synchronous}.")
    if selector.two_phase:
        raise UserError(
            f"{key} {type(selector).__name__}, since whether an update is sent depends on those of others."
        )
    if overrides(objective, "observe") or overrides(objective, "aggregate"):
        raise UserError(
            f"{key} objective {name}, since what it keeps is defined by clients that start from one model: "
            "use FedAvg or FedProx."
        )
    if remembers:
        raise UserError("local.keep_optimizer must be false with asynchronous.concurrency.")


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


def check_phases(selector: Selector, objective: Objective) -> None:
    """Refuse an objective that learns from every update where some of them are not sent.

    Raises:
        UserError: Naming the selector and the objective.
    """
    if selector.two_phase and overrides(objective, "observe"):
        raise UserError(
            f"objective {type(objective).__name__} keeps state of every participant, and with "
            f"{type(selector).__name__} some of them send no update: use FedAvg or FedProx."
        )


def check_same_form(returned: Any, given: Params, method: str) -> Params:
    """Refuse tensors that are not like those that a method was given.

    Raises:
        UserError: Naming the class and its method.
    """
    same = isinstance(returned, dict) and returned.keys() == given.keys()
    if same and all(isinstance(new, Tensor) and new.shape == given[at].shape for at, new in returned.items()):
        return dict(returned)
    raise UserError(f"{method} must return tensors by the names and of the shapes that it was given.")


def check_weights(weights: object, paths: int, name: str, method: str = "weigh") -> Tensor:
    """Refuse weights that are not one finite number >= 0 per path; return them in double precision.

    Raises:
        UserError: Naming the class and the method that gave them.
    """
    if not isinstance(weights, Tensor):
        raise UserError(f"{name}.{method} must return a tensor of {paths} weights, got {weights!r}.")
    if weights.shape == (paths,) and not weights.is_complex():
        plain = weights.detach().to("cpu", torch.float64)
        if all(0 <= weight < math.inf for weight in plain.tolist()):
            return plain
    raise UserError(
        f"{name}.{method} must return {paths} finite weights >= 0, got {short(weights.tolist(), 100)} "
        f"of shape {tuple(weights.shape)}."
    )
