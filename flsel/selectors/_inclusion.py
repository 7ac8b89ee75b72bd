"""Inclusion probabilities of independent sampling: which client sends, given the sizes of updates.

Client i is in the cohort with probability p_i, independently of the others; its update counts 1/p_i times.
That estimate is unbiased, and its variance is sum_i (1/p_i - 1) u_i^2 for updates of length u_i.
"""

from __future__ import annotations

import numpy as np

_ROUNDING = 1e-9


def optimal_inclusion(lengths: np.ndarray, mean: float) -> np.ndarray:
    """Return the inclusion probabilities with the smallest variance for a mean size of the cohort.

    Args:
        lengths: How much each client counts (u), float64 ``[n]``, finite and >= 0.
        mean: Mean size of the cohort (m), > 0.

    Returns:
        p, float64 ``[n]``, in [0, 1], sum m. With at most m lengths above zero these have p = 1 and the
        others 0; if all lengths are zero, p = m/n.
    """
    count = len(lengths)
    if mean >= count:
        return np.ones(count)
    if not lengths.any():
        return np.full(count, mean / count)
    if np.count_nonzero(lengths) <= mean:
        return (lengths > 0).astype(np.float64)
    # The largest lengths have p = 1. Those of the `last` smallest are in proportion to their lengths.
    order = np.argsort(lengths, kind="stable")
    ascending = lengths[order] / lengths.max()
    sums = np.cumsum(ascending)
    room = mean + np.arange(1, count + 1) - count
    last = int(np.flatnonzero((room > 0) & (room * ascending <= sums))[-1])
    probability = np.ones(count)
    probability[order[: last + 1]] = np.minimum(room[last] * ascending[: last + 1] / sums[last], 1.0)
    return probability


def approximate_inclusion(lengths: np.ndarray, mean: float, iterations: int) -> tuple[np.ndarray, int]:
    """Approach :func:`optimal_inclusion` by sums over clients alone, as secure aggregation allows.

    Args:
        lengths: As for :func:`optimal_inclusion`.
        mean: As for :func:`optimal_inclusion`.
        iterations: Most rescalings (j_max), each of which takes two sums over the clients.

    Returns:
        p, float64 ``[n]``, in [0, 1], sum at most m, and the number of rescalings that were made.
    """
    count, total = len(lengths), lengths.sum()
    if mean >= count:
        return np.ones(count), 0
    if total == 0:
        return np.full(count, mean / count), 0
    probability = np.minimum(mean * (lengths / total), 1.0)
    for made in range(1, iterations + 1):
        below = probability < 1
        left = probability[below].sum()
        if left == 0:  # No other client has anything to send.
            return probability, made
        factor = (mean - count + np.count_nonzero(below)) / left
        probability[below] = np.minimum(factor * probability[below], 1.0)
        # It is 1 where nobody reached 1 in the last rescaling. Rounding must not cost a further one.
        if factor <= 1 + _ROUNDING:
            return probability, made
    return probability, iterations


def systematic(probability: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw items with given inclusion probabilities, as many as they sum to.

    The items are laid out in a random order on a line, each as long as its probability. Those are drawn in
    which one of the marks u, u + 1, u + 2, ... lies.

    Args:
        probability: In [0, 1], float64 ``[n]``, sum a whole number.
        rng: Source of the order and of u, which is uniform in [0, 1).

    Returns:
        Positions, int64, in the random order.
    """
    order = rng.permutation(len(probability))
    ends = np.cumsum(probability[order])
    ends[-1] = round(ends[-1])  # Rounding of the sum neither adds nor takes away an item.
    marks = np.floor(ends - rng.random()) + 1
    return order[np.diff(marks, prepend=0) > 0]
