"""Stacks of models as rows of a matrix, their inner products and distances in double precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flsel.selector import Params

_COLUMNS = 1024  # Columns converted to float64 at a time: bounds the copy of a matrix of any width.
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


def distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the Euclidean distances between the rows of two matrices.

    Args:
        one: ``[n, d]``.
        other: ``[m, d]``.

    Returns:
        Float64 ``[n, m]``. Vectors closer than 3e-7 of their length count as equal: single precision, in
        which models come, does not tell them apart.
    """
    norms, squares = np.zeros((len(one), len(other))), np.zeros((len(one), len(other)))
    for part, against in _columns(one, other):
        norms += _squares(part)[:, None] + _squares(against)
        squares -= 2 * (part @ against.T)
    squares += norms
    squares[squares <= _ROUNDING * norms] = 0.0
    return np.sqrt(squares, out=squares)


def _columns(one: np.ndarray, other: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Go through the columns of two matrices in blocks, converted to float64."""
    for first in range(0, one.shape[1], _COLUMNS):
        part = one[:, first : first + _COLUMNS].astype(np.float64)
        yield part, part if other is one else other[:, first : first + _COLUMNS].astype(np.float64)


def _squares(rows: np.ndarray) -> np.ndarray:
    squares: np.ndarray = np.einsum("nd,nd->n", rows, rows)
    return squares
