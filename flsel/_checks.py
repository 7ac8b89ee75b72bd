"""What a federation does not accept from a selector."""

from __future__ import annotations

import torch
from torch import Tensor

from flsel.errors import UserError
from flsel.selector import IDLE, Plan, View


def check_plan(plan: Plan, view: View, name: str) -> None:
    """Refuse a plan outside the budget, the run or the pool.

    Args:
        plan: What the selector planned.
        view: What it was asked with.
        name: The selector's name, for messages.

    Raises:
        UserError: Naming the selector, the round and the rule.
    """
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
        free = view.available if hop == 0 else view.available_at(hop)
        for path in plan.paths:
            if path[hop] != IDLE and not (0 <= path[hop] < len(free) and free[path[hop]]):
                raise UserError(
                    f"{name} planned client {path[hop]}, who is not available in round {view.round + hop}."
                )


def check_weights(weights: Tensor, paths: int, name: str) -> None:
    """Refuse weights that are not one finite number >= 0 per path.

    Raises:
        UserError: Naming the selector.
    """
    if weights.shape != (paths,) or not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        raise UserError(
            f"{name}.weigh must return {paths} finite weights >= 0, got {weights.tolist()} "
            f"of shape {tuple(weights.shape)}."
        )
