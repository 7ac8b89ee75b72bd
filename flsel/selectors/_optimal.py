"""Optimal Aggregation: drop updates that keep the others from agreeing (FedPNS, Algorithm 1).

With gbar_S the mean gradient of a cohort S, the mean over i in S of <gbar_S, g_i> is ||gbar_S||^2, so the
values of all S without k follow from <sum of S, g_k> and ||g_k||^2. All inner products are taken once, as one
matrix product: that takes less time than a few passes of O(K |theta|), and a removal is O(K) then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flsel.params import Params, inner_products

Expectation = Literal["sum", "mean"]

_LARGE = 1e290  # Sums of a few thousand squares of this size, and of their pairs, are finite.
_ROUNDING = 1e-12  # Relative to the largest squared norm: a smaller gain is rounding.


@dataclass(frozen=True)
class Aggregated:
    """The result for a cohort; numbers are rows of its stack.

    Attributes:
        survivors: Rows to aggregate, int64, ascending.
        labelled: Rows whose absence raises the expectation, in the order in which they were found: the
            removed rows, and possibly a last one that stays because the loss would rise without it.
    """

    survivors: np.ndarray
    labelled: list[int]


def optimal_aggregation(
    deltas: Params,
    scale: np.ndarray,
    *,
    least: int,
    expectation: Expectation,
    loss: Callable[[np.ndarray], float],
) -> Aggregated:
    """Remove updates one by one while the expectation rises and the loss does not.

    Args:
        deltas: Updates, each tensor ``[K, ...]``, finite.
        scale: What turns each update into a gradient, up to a factor common to all, float64 ``[K]``, > 0.
        least: Smallest number of updates that survive, >= 1.
        expectation: ``mean`` compares ||gbar_S||^2, ``sum`` compares |S| ||gbar_S||^2.
        loss: Returns the loss of the global model plus the mean of the given rows (int64) of ``deltas``.

    Returns:
        The rows that stay and the labelled rows; the first row among equals is labelled first.
    """
    products = inner_products(deltas) * np.outer(scale, scale)
    if products.diagonal().max() > _LARGE:
        products /= products.diagonal().max()  # Only what is larger matters, and sums of these are numbers.
    squares, dots = products.diagonal(), products.sum(axis=1)
    stays = np.ones(len(scale), dtype=bool)
    labelled: list[int] = []
    before: float | None = None
    while stays.sum() > least:
        gains = _gains(dots[stays], squares[stays], expectation)
        rounding = _ROUNDING * squares.max()
        if gains.max() <= rounding:
            break
        worst = int(np.flatnonzero(stays)[gains >= gains.max() - rounding][0])
        labelled.append(worst)
        rest = stays & (np.arange(len(stays)) != worst)
        before = loss(np.flatnonzero(stays)) if before is None else before
        after = loss(np.flatnonzero(rest))
        if not after <= before:
            break
        stays, before = rest, after
        dots -= products[worst]
    return Aggregated(np.flatnonzero(stays), labelled)


def _gains(dots: np.ndarray, squares: np.ndarray, expectation: Expectation) -> np.ndarray:
    """Return how much each member's absence raises the expectation, from <sum of S, g_k> and ||g_k||^2."""
    members, power = len(dots), 1 if expectation == "sum" else 2
    whole: float = dots.sum()  # ||sum of S||^2
    gains: np.ndarray = (whole - 2 * dots + squares) / (members - 1) ** power - whole / members**power
    return gains
