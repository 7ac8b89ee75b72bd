"""Ward's method over clients: the tree of merges, and cuts of it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.cluster.hierarchy import linkage as build_tree
from scipy.spatial.distance import squareform

from flsel.errors import UserError
from flsel.selectors._pairwise import squared_distances

Linkage = Literal["rows", "condensed"]

_MOST = 1e150  # Sums of squares of as many as there are must be finite.


def ward(distances: np.ndarray, linkage: Linkage = "rows") -> np.ndarray:
    """Merge n clients into one by Ward's method.

    Args:
        distances: Symmetric, zero diagonal, float64 ``[n, n]``, n >= 1.
        linkage: ``"rows"`` takes client k as the point of R^n that row k is, as the reference
            implementations do; ``"condensed"`` takes the matrix as the distances themselves.

    Returns:
        One row a merge, float64 ``[n - 1, 4]``: the two merged clusters (merge j makes cluster n + j, and
        cluster k < n is client k), the height, never falling, and the number of clients.

    Raises:
        UserError: If a distance, or a sum of their squares, is beyond double precision.
    """
    if len(distances) == 1:
        return np.empty((0, 4))
    most = float(np.abs(distances).max())
    if not most < _MOST / len(distances):
        raise UserError(
            f"distances of clients' updates must be below {_MOST / len(distances):.1g} to be clustered, got "
            f'{most:.2g}; lower the learning rate of local.optimizer, or compare by "cosine".'
        )
    between = distances
    if linkage == "rows":
        centred = distances - distances.mean(axis=0)
        between = np.sqrt(squared_distances(centred, centred))
    return np.asarray(build_tree(squareform(between, checks=False), "ward"))


def cut_tree(tree: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Undo some merges of a tree.

    Args:
        tree: What :func:`ward` returned, ``[n - 1, 4]``.
        keep: Merges not undone, bool ``[n - 1]``; with a merge, those below it.

    Returns:
        Cluster of every client, int64 ``[n]``, numbered 0, 1, ... by the first client.
    """
    clients = len(tree) + 1
    children = tree[:, :2].astype(np.int64).tolist()
    top = list(range(clients + len(tree)))
    for merge in np.flatnonzero(keep)[::-1]:
        for child in children[merge]:
            top[child] = top[clients + merge]
    _, first, inverse = np.unique(top[:clients], return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse], dtype=np.int64)


def cut_into(tree: np.ndarray, count: int) -> np.ndarray:
    """Undo the last merges so that exactly ``min(count, n)`` clusters are left, even if heights tie."""
    merges = len(tree)
    return cut_tree(tree, np.arange(merges) < merges + 1 - count)


def cut_by_mass(tree: np.ndarray, masses: np.ndarray, capacity: int) -> np.ndarray:
    """Keep the merges whose clients' masses (int64 ``[n]``) add up to at most ``capacity``."""
    total = masses.tolist()
    for one, other in tree[:, :2].astype(np.int64).tolist():
        total.append(total[one] + total[other])
    return cut_tree(tree, np.array(total[len(masses) :], dtype=np.int64) <= capacity)
