"""Inner products of the rows of a stack of updates, in float64, where the stack lies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flsel.selector import Params
from flsel.selectors._vectors import is_running

_BLOCK = 2**18  # Numbers converted to float64 at a time: their copies stay in the cache.


def inner_products(stack: Params) -> np.ndarray:
    """Return the inner products of all pairs of rows, float64 ``[K, K]``."""
    products = (block @ block.T for block in _blocks(stack))
    total = next(products)
    for product in products:
        total += product
    return total.cpu().numpy()


def squared_norms(stack: Params) -> np.ndarray:
    """Return the squared Euclidean norm of each row, float64 ``[K]``; not finite where the row is not."""
    return torch.stack([block.square().sum(1) for block in _blocks(stack)]).sum(0).cpu().numpy()


def _blocks(stack: Params) -> Iterator[Tensor]:
    """Yield the parameters' columns in order, some at a time, float64 ``[K, columns]``."""
    for name, value in stack.items():
        if is_running(name):
            continue
        columns = max(1, _BLOCK // max(len(value), 1))
        for block in torch.split(value.reshape(len(value), -1), columns, dim=1):
            yield block.double()
