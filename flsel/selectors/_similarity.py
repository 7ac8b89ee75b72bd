"""How unlike clients' updates are: pairwise, after sketching, and as an order by a sample's tree."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.cluster.hierarchy import leaves_list
from scipy.cluster.vq import vq
from scipy.spatial.distance import cdist

from flsel.selectors._ward import Squares, angles, squared_distances, unit, ward

Similarity = Literal["cosine", "L1", "L2"]

EXACT = 2000
"""Most clients whose N^2 distances are kept."""
SKETCH = 256
"""Numbers kept of an update where there are more clients."""
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


def sketched(updates: np.ndarray, length: int) -> np.ndarray:
    """Return the count sketch of updates ``[n, d]``: ``[n, length]``, of the same type.

    Every coordinate is added to one of ``length`` sums with a sign of its own, always the same ones, so
    that sketches of different rounds compare.
    """
    width = updates.shape[1]
    fixed = np.random.Generator(np.random.PCG64(length))
    sums, signs = fixed.integers(length, size=width), fixed.choice([-1.0, 1.0], width)
    sketch = [np.bincount(sums, signs * row, minlength=length) for row in updates]
    return np.reshape(sketch, (-1, length)).astype(updates.dtype)


def leaf_order(updates: np.ndarray, similarity: Similarity, rng: np.random.Generator) -> np.ndarray:
    """Order clients so that similar ones are neighbours, in O(n).

    Ward's method runs on a sample of the non-zero updates; its leaves give the order, in which every other
    client stands at the sampled one that is most similar. Among equals the order is random, and clients
    with zero updates come last.

    Args:
        updates: ``[n, d]``, finite.
        similarity: ``"cosine"`` or ``"L2"``.
        rng: Draws the sample and the order of equals.

    Returns:
        Positions, int64 ``[n]``.
    """
    points = updates.astype(np.float64)
    points = unit(points) if similarity == "cosine" else points
    seen = np.flatnonzero(points.any(axis=1))
    place = np.full(len(points), len(points))
    if len(seen):
        sample = rng.choice(seen, min(_SAMPLE, len(seen)), replace=False)
        tree = ward(dissimilarities(points[sample], points[sample], similarity))
        leaves = leaves_list(tree) if len(tree) else np.zeros(1, dtype=np.int64)
        place[seen] = vq(points[seen], points[sample[leaves]])[0]
    return np.lexsort((rng.random(len(points)), place))
