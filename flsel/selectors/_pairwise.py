"""Vectors as rows of a matrix, compared in pairs in double precision: products, distances, angles."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

Squares = tuple[np.ndarray, np.ndarray]

_BLOCK = 2**17  # Numbers converted to float64 at a time: their copies stay in the cache.
_NARROWEST = 128  # Columns of a block, however many the rows.
_ROWS = 2048  # Rows compared with points at a time.
_PAIRS = 2**19  # Numbers of pairs of vectors subtracted at a time.
_ROUNDING = 1e-13  # Of squared lengths.
# Where a difference is a smaller share than this, products have lost too many of its digits.
_NEAR = 1e-6


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


def euclidean_distances(one: np.ndarray, other: np.ndarray, squares: Squares | None = None) -> np.ndarray:
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
    lengths: np.ndarray = norms - 2 * inner_products(one, other)
    lengths[lengths <= _ROUNDING * norms] = 0.0
    np.sqrt(lengths, out=lengths)
    return lengths


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
    offset = None if angle else against.square().sum(dim=0) / 2
    found = np.empty(len(rows), dtype=np.int64)
    for first in range(0, len(rows), _ROWS):
        some = slice(first, first + _ROWS)
        products = torch.from_numpy(rows[some]) @ against
        if offset is not None:
            products -= offset
        found[some] = products.numpy().argmax(axis=1)  # four times as fast as torch's
    return found


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
    with np.errstate(over="ignore", under="ignore"):
        scale = np.sqrt(np.outer(one, other))
    beyond = ~np.isfinite(scale) | (scale == 0)  # Products of squares that double precision does not hold.
    scale[beyond] = np.outer(np.sqrt(one), np.sqrt(other))[beyond]
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


def _columns(one: np.ndarray, other: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Go through the columns of two matrices in float64, in blocks where they must be converted."""
    width = one.shape[1]
    converted = one.dtype != np.float64 or other.dtype != np.float64
    step = max(_NARROWEST, _BLOCK // max(len(one) + len(other), 1)) if converted else max(width, 1)
    for first in range(0, width, step):
        part = one[:, first : first + step].astype(np.float64, copy=False)
        yield part, part if other is one else other[:, first : first + step].astype(np.float64, copy=False)


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
    step = max(1, _PAIRS // max(width, 1))
    for start in range(0, len(rows), step):
        yield rows[start : start + step], columns[start : start + step]
