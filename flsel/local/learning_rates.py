"""Learning rates over communication rounds: a schedule as a table, and its factors set on an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flsel.errors import UserError
from flsel.local.tasks import LARGEST
from flsel.local.torch_internals import without_compiler


class _Still(SGD):
    """An optimizer with nothing to do; torch's own steps import its compiler first."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Do nothing."""


def lr_factors(schedule: Callable[[Optimizer], LRScheduler] | None, rounds: int) -> list[float]:
    """Tabulate a torch learning-rate schedule whose unit is the communication round.

    Args:
        schedule: Makes the scheduler of an optimizer; None keeps the rate constant.
        rounds: Number of communication rounds.

    Returns:
        The factor on the initial learning rate in rounds ``0..rounds-1``.

    Raises:
        UserError: If the scheduler fails before the last round or asks for more than the round.
    """
    if schedule is None:
        return [1.0] * rounds
    with without_compiler():
        optimizer = _Still([nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler = schedule(optimizer)
    factors = []
    try:
        for _ in range(rounds):
            factors.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            scheduler.step()
    except (ArithmeticError, TypeError, ValueError) as error:
        name = type(scheduler).__name__
        raise UserError(
            f"local.lr_schedule {name} must step through {rounds} rounds by itself, and failed in round "
            f"{len(factors) - 1}: {error}."
        ) from error
    beyond = next((round for round, factor in enumerate(factors) if not abs(factor) <= LARGEST), None)
    if beyond is not None:
        raise UserError(
            f"local.lr_schedule must keep the learning rate finite and below {LARGEST:.1e} times the first, "
            f"and in round {beyond} it is {factors[beyond]:g} times."
        )
    return factors


def scale_lr(groups: Iterable[dict[str, object]], base: Sequence[float], factor: float) -> None:
    """Set the learning rate of optimizer groups to ``factor`` times their base rates."""
    for group, lr in zip(groups, base, strict=True):
        group["lr"] = lr * factor
