"""Stacks of models as rows of a matrix: inner products and distances in double precision, and sketches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from flsel.selector import Params

EXACT = 2000
"""Most clients that are compared pairwise, and whose updates are kept whole unless told otherwise."""
SKETCH = 256
"""Numbers kept of an update where there are more clients."""
_BLOCK = 2**17  # Numbers converted to float64 at a time: their copies stay in the cache.
_NARROWEST = 128  # Columns of a block, however many the rows.
_ROWS = 2048  # Rows compared with points at a time.
_ROUNDING = 1e-13  # Of squared lengths.
_ROUNDING_OF_SKETCHES = 3e-3  # Of lengths.
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
        if not is_running(name):
            moved = value if origin is None else value - origin[name]
            rows.append(moved.detach().reshape(len(value), -1).cpu())
    return torch.cat(rows, dim=1)


def is_running(name: str) -> bool:
    """Tell whether a model's tensor is a running statistic of a normalisation layer: no parameter."""
    return name.rpartition(".")[2] in _RUNNING


def inner_products(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the inner products of the rows of two matrices.

    By torch: the threads of NumPy's matrix product wait busily for more, and slow down the training after it.

    Args:
        one: ``[n, d]``.
        other: ``[m, d]``.

    Returns:
        Float64 ``[n, m]``, summed in double precision; exactly symmetric if both are the same matrix.
    """
    total = torch.zeros(len(one), len(other), dtype=torch.float64)
    for part, against in _columns(one, other):
        total.addmm_(torch.from_numpy(part), torch.from_numpy(against).T)
    return (total.tril() + total.tril(-1).T if one is other else total).numpy()


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


def nearest(rows: np.ndarray, points: np.ndarray, *, angle: bool = False) -> np.ndarray:
    """Return which of some points is nearest to each row, up to rounding in the rows' precision.

    Args:
        rows: ``[n, d]``.
        points: ``[m, d]``; unit vectors if angles are compared.
        angle: Whether to compare angles in place of Euclidean distances.

    Returns:
        Int64 ``[n]``.
    """
    against = torch.from_numpy(points.astype(rows.dtype)).T
    # |x - p|^2 = |x|^2 - 2 (<x, p> - |p|^2 / 2)
    offset = 0.0 if angle else against.square().sum(dim=0) / 2
    parts = torch.split(torch.from_numpy(rows), _ROWS)
    return torch.cat([(part @ against - offset).argmax(dim=1) for part in parts]).numpy()


def sketch_length(clients: int, chosen: int | None) -> int | None:
    """Return how many numbers are kept of an update: as chosen, or by the number of clients; None is all."""
    return chosen or (SKETCH if clients > EXACT else None)


def sketched(updates: np.ndarray, length: int) -> np.ndarray:
    """Return the count sketch of updates ``[n, d]``: ``[n, length]``, of the same type.

    Updates that are no longer than that are returned as they are.

    Every coordinate is added to one of ``length`` sums with a sign of its own, always the same ones, so
    that sketches of different rounds compare. Inner products of sketches are those of the updates up to a
    relative 1 / sqrt(length). Not finite where the update or a sum is not.
    """
    if updates.shape[1] <= length:
        return updates
    sums, signs = _places(updates.shape[1], length)
    sketch = [np.bincount(sums, signs * row, minlength=length) for row in updates]
    with np.errstate(over="ignore"):
        return np.reshape(sketch, (-1, length)).astype(updates.dtype)


def sketch_distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the Euclidean distances between sketches in single precision.

    Args:
        one: Float32 ``[n, d]``.
        other: Float32 ``[m, d]``.

    Returns:
        Float32 ``[n, m]``; a sketch and one closer to it than 3e-3 of its length count as equal, since single
        precision does not tell them apart.
    """
    rows = torch.from_numpy(one)
    apart = torch.cdist(rows, torch.from_numpy(other), compute_mode="use_mm_for_euclid_dist")
    apart.masked_fill_(apart <= _ROUNDING_OF_SKETCHES * rows.norm(dim=1, keepdim=True), 0.0)
    return apart.numpy()


@lru_cache(maxsize=4)
def _places(width: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the sum and the sign of each coordinate, always the same ones."""
    fixed = np.random.Generator(np.random.PCG64(length))
    return fixed.integers(length, size=width), fixed.choice([-1.0, 1.0], width)


def _columns(one: np.ndarray, other: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Go through the columns of two matrices in float64, in blocks where they must be converted."""
    width = one.shape[1]
    converted = one.dtype != np.float64 or other.dtype != np.float64
    step = max(_NARROWEST, _BLOCK // max(len(one) + len(other), 1)) if converted else max(width, 1)
    for first in range(0, width, step):
        part = one[:, first : first + step].astype(np.float64, copy=False)
        yield part, part if other is one else other[:, first : first + step].astype(np.float64, copy=False)
