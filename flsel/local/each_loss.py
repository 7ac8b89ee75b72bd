"""Losses of single examples, in one pass where a task allows it, and the refusal of losses that have none."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from flsel.data.trees import Tree, mapped
from flsel.errors import UserError
from flsel.local.program import Program

_COMPARED = 8
_ROUNDING = 1e-3  # Relative: single precision and other orders of sums stay far below.


def each_loss(program: Program, where: Tensor) -> Tensor:
    """Return the loss of the loaded model on each of some examples, ``[n]``."""
    if program.by_logits:
        x, y = program.batch(where)
        return nn.functional.cross_entropy(program.outputs(x), y, reduction="none")
    return _in_one_pass(program, where) if program.losses_in_one_pass else _one_by_one(program, where)


def with_single_losses(program: Program, selector: str) -> Program:
    """Return the program as its single losses are asked, which the first examples of a client decide.

    A task's loss is that of a batch. If it is a mean over examples, perhaps weighted, or their sum, losses of
    single examples have a meaning. They are asked in one pass if this gives the same numbers.

    Args:
        program: The client's side of the federation.
        selector: Name of the selector that reads them.

    Raises:
        UserError: If the task compares the examples of a batch, as a contrastive loss does.
    """
    if program.by_logits:
        return program
    where = max(program.population.shards, key=len)[:_COMPARED]
    with program.evaluating(), torch.no_grad(), program.fabric.autocast():
        program.seed_draws("evaluation", 0)
        batch = program.measured_loss(program.batch(where))
        program.seed_draws("evaluation", 1)
        draws = bool(batch != program.measured_loss(program.batch(where)))
        single = _one_by_one(program, where).double()
        if not draws and not _belongs_to(float(batch), single):
            name, least, most = type(program.model).__name__, float(single.min()), float(single.max())
            raise UserError(
                f"{selector} reads losses of single examples, and the loss of {name} has none: it is "
                f"{float(batch):.3g} on {len(where)} examples together, and from {least:.3g} to {most:.3g} "
                "on each alone. Take another selector, such as AFL, which reads losses of clients."
            )
        try:
            found = _in_one_pass(program, where).double()
        except Exception:  # whatever a user's step cannot do under vmap
            return program
    same = found.shape == single.shape and torch.allclose(found, single, rtol=_ROUNDING, atol=1e-6)
    return replace(program, losses_in_one_pass=bool(same))


def _belongs_to(batch: float, single: Tensor) -> bool:
    """Tell whether a batch's loss is a mean of single ones with some weights, or their sum."""
    if not torch.isfinite(single).all():
        return False
    slack = _ROUNDING * float(single.abs().max()) + 1e-6
    between = float(single.min()) - slack <= batch <= float(single.max()) + slack
    return between or abs(batch - float(single.sum())) <= len(single) * slack


def _one_by_one(program: Program, where: Tensor) -> Tensor:
    return torch.stack([program.measured_loss(program.batch(one[None])) for one in where])


def _in_one_pass(program: Program, where: Tensor) -> Tensor:
    """Ask every example's loss by vmap, which refuses what draws."""

    def loss(x: Tree, y: Tree) -> Tensor:
        return program.measured_loss((mapped(lambda part: part[None], x), mapped(lambda part: part[None], y)))

    found: Tensor = torch.func.vmap(loss)(*program.batch(where))
    return found
