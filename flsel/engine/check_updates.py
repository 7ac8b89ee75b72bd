"""Refuse steps and aggregates of updates that do not fit other settings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flsel.engine.update_steps import UpdateSteps
from flsel.errors import UserError
from flsel.objectives.objective import Objective, overrides
from flsel.selector import Plan, Selector


def check_updates(steps: UpdateSteps, selector: Selector, objective: Objective, *, least: int) -> None:
    """Refuse what has no meaning together.

    Args:
        steps: The steps and the aggregate.
        selector: Who weighs the updates.
        objective: What clients minimise.
        least: Fewest updates that a full round aggregates: ``clients_per_round``, or the buffer.

    Raises:
        UserError: Naming the settings.
    """
    name, method = type(selector).__name__, type(objective).__name__
    if steps.change_updates and overrides(objective, "observe"):
        raise UserError(
            f"updates must not change what clients send with objective {method}, since what it keeps is "
            "defined by the updates before their steps: use FedAvg or FedProx."
        )
    if steps.remember and selector.two_phase:
        raise UserError(
            f"updates must not keep errors at the clients (feedback) with {name}, since some of its clients "
            "send no update: set feedback to false."
        )
    joined = type(steps.aggregate).__name__
    if steps.aggregate.robust and selector.weights_correct_for:
        raise UserError(
            f"aggregate must be Mean with {name}, got {joined}: its weights correct for "
            f"{selector.weights_correct_for}, and a robust aggregate counts all updates alike."
        )
    if steps.aggregate.robust and overrides(objective, "reweigh"):
        raise UserError(
            f"aggregate must be Mean with objective {method}, which weighs updates by the local work behind "
            f"them, got {joined}: a robust aggregate counts all updates alike."
        )
    if steps.aggregate.robust and steps.noise_at_server:
        raise UserError(
            f"aggregate must be Mean with noise at the server, which is relative to the largest weight, got "
            f"{joined}: let the clients add it (where: client)."
        )
    if least < steps.aggregate.least:
        raise UserError(
            f"clients_per_round (or asynchronous.buffer) must be at least {steps.aggregate.least} with "
            f"aggregate {joined}, got {least}."
        )


def check_bounded(steps: UpdateSteps, names: Sequence[str]) -> None:
    """Refuse noise for privacy where something is sent without it.

    Args:
        steps: The steps.
        names: What is sent besides the trainable parameters.

    Raises:
        UserError: Naming the first.
    """
    noisy = next((step for step in steps.steps if step.needs_bound), None)
    if noisy is not None and names:
        raise UserError(
            f"updates {type(noisy).__name__} must have a model without running statistics, which are sent "
            f"without noise, and this one has {names[0]}: use GroupNorm, or keep them at the clients "
            "by local.personal."
        )


def check_one_hop(steps: UpdateSteps, plan: Plan, name: str) -> None:
    """Refuse steps of updates where paths chain clients.

    Raises:
        UserError: Naming the selector.
    """
    if plan.hops > 1 and steps.change_updates:
        raise UserError(
            f"updates must not change what clients send with {name}, which chains {plan.hops} clients: the "
            "steps are defined for the update of one client."
        )


def check_alike(steps: UpdateSteps, weights: Tensor, name: str, round: int) -> None:
    """Refuse weights that a robust aggregate gives no meaning.

    Args:
        steps: The steps and the aggregate.
        weights: What the selector gave, float64 ``[K]``.
        name: The selector.
        round: Communication round.

    Raises:
        UserError: If they do not sum to one.
    """
    total = float(weights.sum())
    if steps.aggregate.robust and total > 0 and not torch.isclose(weights.sum(), weights.new_tensor(1.0)):
        raise UserError(
            f"aggregate must be Mean with {name}, got {type(steps.aggregate).__name__}: its weights sum to "
            f"{total:.3g} in round {round}, and a robust aggregate counts all updates alike."
        )
