"""The Data-Distribution-Dependency Graph (3DG): clients' similarities, edges and shortest paths.

Z. Wang et al.: "FedGS: Federated Graph-based Sampling with Arbitrary Client Availability", AAAI 2023,
"Construction of 3DG in FL" and appendices B and C; and its reference code. Symbols: features u, similarity V,
adjacency R, shortest paths H, edge threshold epsilon, edge scale sigma^2.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.sparse.csgraph import floyd_warshall

Variant = Literal["scaled", "normalised", "paper", "reference"]

EPSILON: dict[Variant, float] = {"scaled": 0.0, "normalised": 0.1, "paper": 0.1, "reference": 0.01}
"""The least similarity that makes an edge; of the reference, what its code ran with."""
SIGMA2: dict[Variant, float] = {"scaled": 1.0, "normalised": 0.01, "paper": 0.01, "reference": 0.1}
"""The scale of the edges."""


def cosines(products: np.ndarray) -> np.ndarray:
    """Turn inner products into cosines.

    Args:
        products: Inner products of n vectors, float64 ``[n, n]``; NaN where a vector is unknown.

    Returns:
        ``[n, n]``; 0 for a vector of length zero, NaN where ``products`` is.
    """
    lengths = np.sqrt(np.diag(products))
    scale = np.outer(lengths, lengths)
    unknown: np.ndarray = np.where(np.isnan(products), np.nan, 0.0)
    cosine: np.ndarray = np.divide(products, scale, out=unknown, where=scale > 0)
    return cosine


def stretched(values: np.ndarray) -> np.ndarray:
    """Map the numbers in ``values`` linearly to [0, 1], equal ones to 0; NaN stays (appendix C)."""
    known = values[~np.isnan(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    mapped: np.ndarray = (values - low) / (high - low) if high > low else values * 0.0
    return mapped


def similarity(products: np.ndarray, *, clip: bool, variant: Variant) -> np.ndarray:
    """Return the similarities V in [0, 1] (Eqs. 10-12).

    Args:
        products: Inner products of the clients' features, float64 ``[N, N]``; NaN where unknown.
        clip: Take the positive part of the cosine, as for models, instead of stretching inner products to
            [0, 1], as for the oracle features.
        variant: ``scaled`` stretches what the paper takes over the pairs of different clients;
            ``reference`` stretches cosines, with the diagonal counted as 0, for all features.

    Returns:
        ``[N, N]``, NaN where unknown.
    """
    if variant == "scaled":
        between = np.maximum(cosines(products), 0.0) if clip else products.copy()
        np.fill_diagonal(between, np.nan)
        values = stretched(between)
        np.fill_diagonal(values, 1.0)
        return values
    if variant == "reference":
        values = cosines(products)
        np.fill_diagonal(values, 0.0)
        return stretched(values)
    return np.maximum(cosines(products), 0.0) if clip else stretched(products)


def adjacency(similarity: np.ndarray, *, epsilon: float, sigma2: float, variant: Variant) -> np.ndarray:
    """Return edge lengths R: exp(-V / sigma^2) where V >= epsilon, else infinite; 0 on the diagonal.

    The variant ``reference`` has exp(-V^2 / sigma^2) where V > epsilon. An unknown similarity is no edge.
    """
    reference = variant == "reference"
    edge = similarity > epsilon if reference else similarity >= epsilon
    lengths = np.full(similarity.shape, np.inf)
    values = similarity[edge]
    lengths[edge] = np.exp(-(values**2 if reference else values) / sigma2)
    np.fill_diagonal(lengths, 0.0)
    return lengths


def shortest_paths(lengths: np.ndarray) -> np.ndarray:
    """Return the lengths of all shortest paths, ``[N, N]``, infinite where there is none; O(N^3)."""
    # A plain array would lose every edge below 1e-8, which scipy takes for no edge, and sigma^2 = 0.01 makes
    # hardly any other; the mask says which entries are edges. An edge of length zero would still be lost.
    edges = np.maximum(lengths, np.finfo(np.float64).tiny)
    np.fill_diagonal(edges, 0.0)
    paths: np.ndarray = floyd_warshall(np.ma.array(edges, mask=np.isinf(edges)), overwrite=True)
    return paths


def graph_distances(paths: np.ndarray, *, gap: float, variant: Variant) -> np.ndarray:
    """Return finite distances H between clients, float64 ``[N, N]``, 0 on the diagonal.

    Args:
        paths: Lengths of shortest paths, infinite where there is none.
        gap: Distance where there is no path, in units of the longest path; without any path all distances
            are one.
        variant: ``paper`` leaves the paths as long as they are, the others divide by the longest.
    """
    reached = np.isfinite(paths)
    longest = float(paths[reached].max())
    unit = longest if longest > 0 and variant != "paper" else 1.0
    unreached = gap * longest / unit if longest > 0 else 1.0
    return np.where(reached, paths / unit, unreached)
