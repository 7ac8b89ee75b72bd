"""Stacks of models as rows of a matrix, their inner products and distances in double precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flsel.selector import Params

_BLOCK = 2**17  # Numbers converted to float64 at a time: their copies stay in the cache.
_NARROWEST = 128  # Columns of a block, however many the rows.
_ROUNDING = 1e-13  # Of squared lengths.
_RUNNING = ("running_mean", "running_var")


def flatten(stack: Params, origin: Params | None = None) -> Tensor:
    """Lay each model of a stack out as a row, on the CPU.

    Args:
        stack: n models, each tensor ``[n, ...]``.
        origin: Model to subtract, or None.

    Returns:
        ``[n, |theta|]`` in the stack's precision; running statistics of normalisation layers are left out.
    """
    rows = []
    for name, value in stack.items():
        if name.rpartition(".")[2] not in _RUNNING:
            moved = value if origin is None else value - origin[name]
            rows.append(moved.detach().reshape(len(value), -1).cpu())
    return torch.cat(rows, dim=1)


def inner_products(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the inner products of the rows of two matrices.

    Args:
        one: ``[n, d]``.
        other: ``[m, d]``.

    Returns:
        Float64 ``[n, m]``, summed in double precision; exactly symmetric if both are the same matrix.
    """
    total = np.zeros((len(one), len(other)))
    for part, against in _columns(one, other):
        total += part @ against.T
    return total


def squared_lengths(rows: np.ndarray) -> np.ndarray:
    """Return the squared Euclidean length of each row, float64 ``[n]``; not finite where the row is not."""
    total = np.zeros(len(rows))
    for part, _ in _columns(rows, rows):
        total += np.einsum("nd,nd->n", part, part)
    return total


def distances(
    one: np.ndarray, other: np.ndarray, squares: tuple[np.ndarray, np.ndarray] | None = None
) -> np.ndarray:
    """Return the Euclidean distances between the rows of two matrices.

    Args:
        one: ``[n, d]``.
        other: ``[m, d]``.
        squares: Squared lengths of the rows of both, where they are known.

    Returns:
        Float64 ``[n, m]``. Vectors closer than 3e-7 of their length count as equal: single precision, in
        which models come, does not tell them apart.
    """
    norms: np.ndarray = np.add.outer(*(squares or (squared_lengths(one), squared_lengths(other))))
    apart: np.ndarray = norms - 2 * inner_products(one, other)
    apart[apart <= _ROUNDING * norms] = 0.0
    np.sqrt(apart, out=apart)
    return apart


def _columns(one: np.ndarray, other: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Go through the columns of two matrices in float64, in blocks where they must be converted."""
    width = one.shape[1]
    converted = one.dtype != np.float64 or other.dtype != np.float64
    step = max(_NARROWEST, _BLOCK // max(len(one) + len(other), 1)) if converted else max(width, 1)
    for first in range(0, width, step):
        part = one[:, first : first + step].astype(np.float64, copy=False)
        yield part, part if other is one else other[:, first : first + step].astype(np.float64, copy=False)
