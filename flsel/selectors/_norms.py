"""Inner products of the rows of a stack of updates, in float64 and O(K |theta|) each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flsel.selector import Params

_BLOCK = 2**18  # Numbers converted to float64 at a time: their copies stay in the cache.


def total(stack: Params, scale: np.ndarray) -> Tensor:
    """Return the sum of the rows, each times its scale, as one vector, float64 ``[P]``."""
    return torch.cat([torch.from_numpy(scale).to(block.device) @ block for block in _blocks(stack)])


def products(stack: Params, vector: Tensor) -> np.ndarray:
    """Return the inner product of each row with a vector ``[P]``, float64 ``[K]``."""
    dots, start = [], 0
    for block in _blocks(stack):
        dots.append(block @ vector[start : start + block.shape[1]])
        start += block.shape[1]
    return torch.stack(dots).sum(0).cpu().numpy()


def squared_norms(stack: Params) -> np.ndarray:
    """Return the squared Euclidean norm of each row, float64 ``[K]``; not finite where the row is not."""
    return torch.stack([block.square().sum(1) for block in _blocks(stack)]).sum(0).cpu().numpy()


def flat_row(stack: Params, row: int) -> Tensor:
    """Return one row as a vector, float64 ``[P]``."""
    return torch.cat([value[row].flatten().double() for value in stack.values()])


def _blocks(stack: Params) -> Iterator[Tensor]:
    """Yield all columns of a stack in order, some at a time, float64 ``[K, columns]``."""
    for value in stack.values():
        columns = max(1, _BLOCK // max(len(value), 1))
        for block in torch.split(value.reshape(len(value), -1), columns, dim=1):
            yield block.double()
