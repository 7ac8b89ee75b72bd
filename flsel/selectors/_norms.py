"""Inner products of the rows of a stack of updates, in float64 and one row at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flsel.selector import Params


def flat_row(stack: Params, row: int) -> Tensor:
    """Return one row of a stack as a vector, float64 ``[P]``, on the stack's device."""
    return torch.cat([value[row].flatten().double() for value in stack.values()])


def products(stack: Params, vector: Tensor) -> np.ndarray:
    """Return the inner product of each row with a vector of its length, float64 ``[K]``."""
    return torch.stack([flat_row(stack, row) @ vector for row in range(_rows(stack))]).cpu().numpy()


def squared_norms(stack: Params) -> np.ndarray:
    """Return the squared Euclidean norm of each row, float64 ``[K]``; not finite where the row is not."""
    rows = (flat_row(stack, row) for row in range(_rows(stack)))
    return torch.stack([row @ row for row in rows]).cpu().numpy()


def _rows(stack: Params) -> int:
    return len(next(iter(stack.values())))
