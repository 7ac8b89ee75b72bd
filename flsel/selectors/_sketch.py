"""Sketches of updates: few numbers that keep inner products, for many clients."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

EXACT = 2000
"""Largest number of clients that are compared in pairs, and whose updates are kept whole by default."""
SKETCH = 256
"""Numbers kept of an update if there are more clients."""
_ROUNDING = 3e-3  # Of lengths.


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
    distances = torch.cdist(rows, torch.from_numpy(other), compute_mode="use_mm_for_euclid_dist")
    distances.masked_fill_(distances <= _ROUNDING * rows.norm(dim=1, keepdim=True), 0.0)
    return distances.numpy()


@lru_cache(maxsize=4)
def _places(width: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the sum and the sign of each coordinate, always the same ones."""
    fixed = np.random.Generator(np.random.PCG64(length))
    return fixed.integers(length, size=width), fixed.choice([-1.0, 1.0], width)
