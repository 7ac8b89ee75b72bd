"""Ward's method over clients: angles between their updates, the tree of merges, and cuts of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from scipy.cluster.hierarchy import linkage as build_tree
from scipy.spatial.distance import squareform

from flsel.selectors._vectors import inner_products, squared_lengths

Linkage = Literal["rows", "condensed"]
Squares = tuple[np.ndarray, np.ndarray]

# Where a difference is a smaller share than this, products have lost too many of its digits.
_NEAR = 1e-6
_BLOCK = 2**19


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale every row to Euclidean length one, ``[n, d]``; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def angles(
    left: np.ndarray, right: np.ndarray, to_zero: float = math.pi / 2, squares: Squares | None = None
) -> np.ndarray:
    """Return the angles between the rows of two arrays.

    Where arccos of the cosine loses digits, near 0 and pi, an angle is 2 atan2(|a - b|, |a + b|) of the unit
    vectors a and b; it is exactly 0 between equal rows, and never NaN.

    Args:
        left: Vectors with finite squares, ``[n, d]``.
        right: Vectors with finite squares, ``[m, d]``.
        to_zero: Angle between a zero vector and another.
        squares: Squared lengths of the rows of both, where they are known.

    Returns:
        Radians in [0, pi], float64 ``[n, m]``; 0 between two zero vectors.
    """
    products = inner_products(left, right)
    one, other = squares or (squared_lengths(left), squared_lengths(right))
    scale = np.sqrt(np.outer(one, other))
    cosine = np.divide(products, scale, out=np.zeros_like(scale), where=scale > 0)
    result: np.ndarray = np.arccos(np.clip(cosine, -1.0, 1.0))
    result[scale == 0] = to_zero
    result[np.ix_(one == 0, other == 0)] = 0.0
    near = np.abs(cosine) > 1.0 - _NEAR
    result[near] = 0.0
    for row, column in _pairs(_unless_equal(near, left, right), left.shape[1]):
        # An update is compared with itself every round: that needs no lengths.
        unlike = (left[row] != right[column]).any(axis=1)
        row, column = row[unlike], column[unlike]
        a, b = unit(left[row].astype(np.float64)), unit(right[column].astype(np.float64))
        result[row, column] = 2.0 * np.arctan2(np.linalg.norm(a - b, axis=1), np.linalg.norm(a + b, axis=1))
    return result


def squared_distances(left: np.ndarray, right: np.ndarray, squares: Squares | None = None) -> np.ndarray:
    """Return the squared Euclidean distances between the rows of two arrays.

    Args:
        left: Vectors with finite squares, ``[n, d]``.
        right: Vectors with finite squares, ``[m, d]``.
        squares: Squared lengths of the rows of both, where they are known.

    Returns:
        Float64 ``[n, m]``, >= 0, accurate to nine digits; exactly 0 between equal rows.
    """
    both = np.add.outer(*(squares or (squared_lengths(left), squared_lengths(right))))
    result: np.ndarray = both - 2.0 * inner_products(left, right)
    near = result < _NEAR * both
    result[near] = 0.0
    for row, column in _pairs(_unless_equal(near, left, right), left.shape[1]):
        result[row, column] = squared_lengths(left[row].astype(np.float64) - right[column])
    return result


def ward(distances: np.ndarray, linkage: Linkage = "rows") -> np.ndarray:
    """Merge n clients into one by Ward's method.

    Args:
        distances: Symmetric, zero diagonal, finite, float64 ``[n, n]``, n >= 1.
        linkage: ``"rows"`` takes client k as the point of R^n that row k is, as the reference
            implementations do; ``"condensed"`` takes the matrix as the distances themselves.

    Returns:
        One row a merge, float64 ``[n - 1, 4]``: the two merged clusters (merge j makes cluster n + j, and
        cluster k < n is client k), the height, never falling, and the number of clients.
    """
    if len(distances) == 1:
        return np.empty((0, 4))
    between = distances
    if linkage == "rows":
        centred = distances - distances.mean(axis=0)
        between = np.sqrt(squared_distances(centred, centred))
    return np.asarray(build_tree(squareform(between, checks=False), "ward"))


def cut(tree: np.ndarray, keep: np.ndarray) -> np.ndarray:
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
    return cut(tree, np.arange(merges) < merges + 1 - count)


def cut_by_mass(tree: np.ndarray, masses: np.ndarray, capacity: int) -> np.ndarray:
    """Keep the merges whose clients' masses (int64 ``[n]``) add up to at most ``capacity``."""
    total = masses.tolist()
    for one, other in tree[:, :2].astype(np.int64).tolist():
        total.append(total[one] + total[other])
    return cut(tree, np.array(total[len(masses) :], dtype=np.int64) <= capacity)


def _unless_equal(near: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Take pairs of equal rows out of a mask, where so many are near that this pays."""
    if np.count_nonzero(near) <= len(left) + len(right):
        return near
    kinds: dict[bytes, int] = {}
    one, other = (
        np.array([kinds.setdefault(row.tobytes(), len(kinds)) for row in rows]) for rows in (left, right)
    )
    unlike: np.ndarray = near & (one[:, None] != other)
    return unlike


def _pairs(mask: np.ndarray, width: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the positions of True in a matrix, in parts for which vectors of ``width`` fit into memory."""
    rows, columns = np.nonzero(mask)
    step = max(1, _BLOCK // max(width, 1))
    for start in range(0, len(rows), step):
        yield rows[start : start + step], columns[start : start + step]
