"""Dissimilarity of clients' updates: in pairs, and as an order by the tree of a sample."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.cluster.hierarchy import leaves_list
from scipy.spatial.distance import cdist

from flsel.selectors._pairwise import Squares, angles, nearest, squared_distances, unit
from flsel.selectors._ward import ward

Similarity = Literal["cosine", "L1", "L2"]

_SAMPLE = 200


def dissimilarities(
    left: np.ndarray, right: np.ndarray, similarity: Similarity, squares: Squares | None = None
) -> np.ndarray:
    """Compare updates in float64.

    Args:
        left: Updates with finite squares, ``[n, d]``.
        right: Updates with finite squares, ``[m, d]``.
        similarity: ``"cosine"``: angle in radians, 0 to and from a zero update; ``"L1"``: sum of absolute
            differences; ``"L2"``: sum of squared differences.
        squares: Squared lengths of the updates on both sides, where they are known.

    Returns:
        Float64 ``[n, m]``.
    """
    if similarity == "cosine":
        return angles(left, right, to_zero=0.0, squares=squares)
    if similarity == "L2":
        return squared_distances(left, right, squares)
    return np.asarray(cdist(left, right, "cityblock"))


def leaf_order(
    updates: np.ndarray, squares: np.ndarray, similarity: Similarity, rng: np.random.Generator
) -> np.ndarray:
    """Order clients so that similar ones are neighbours, in O(n).

    Ward's method runs on a sample of the non-zero updates; its leaves give the order, in which every other
    client stands at the sampled one that is most similar, in the updates' precision. Among equals the order
    is random, and clients with zero updates come last.

    Args:
        updates: ``[n, d]``, finite.
        squares: Their squared lengths, ``[n]``.
        similarity: ``"cosine"`` or ``"L2"``.
        rng: Draws the sample and the order of equals.

    Returns:
        Positions, int64 ``[n]``.
    """
    seen = np.flatnonzero(squares > 0)
    place = np.full(len(updates), _SAMPLE, dtype=np.int16)
    if len(seen):
        points = updates[rng.choice(seen, min(_SAMPLE, len(seen)), replace=False)].astype(np.float64)
        points = unit(points) if similarity == "cosine" else points
        tree = ward(dissimilarities(points, points, similarity))
        leaves = leaves_list(tree) if len(tree) else np.zeros(1, dtype=np.int64)
        place[seen] = nearest(updates, points[leaves], angle=similarity == "cosine")[seen]
    order = np.argsort(rng.random(len(updates)))
    # Stable, and by counting: faster than one sort by both.
    return order[np.argsort(place[order], kind="stable")]
