"""Draws that several selectors share, and the equal weights that go with them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def successive(log_weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw distinct items one after another, each with probability proportional to its weight.

    The items with the largest log weight plus Gumbel noise are such a draw (Plackett-Luce), in order. Its
    inclusion probabilities are not ``count`` times the normalised weights.

    Args:
        log_weights: Logarithms of the weights, float64 ``[n]``; -inf is never drawn.
        count: Items to draw, >= 0.
        rng: Source of the noise.

    Returns:
        Positions in order of drawing, int64; fewer than ``count`` if fewer weights are positive.
    """
    keys = log_weights + rng.gumbel(size=len(log_weights))
    return np.argsort(-keys, kind="stable")[: min(count, np.count_nonzero(log_weights > -np.inf))]


def largest(values: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the positions of the ``count`` largest values, largest first; ties are broken at random.

    NaN ranks below every number and is taken only if no number is left.
    """
    ranked = np.where(np.isnan(values), -np.inf, values)
    return np.lexsort((rng.random(len(ranked)), -ranked))[:count]


def with_examples(pool: np.ndarray, sizes: Tensor) -> np.ndarray:
    """Return the clients of a pool that have examples, or all of them if none has.

    Args:
        pool: Ids of available clients, int64 ``[n]``.
        sizes: Examples of every client, int64 ``[N]``.
    """
    able: np.ndarray = pool[sizes.numpy()[pool] > 0]
    return able if len(able) else pool


def without(clients: np.ndarray, some: np.ndarray | list[int]) -> np.ndarray:
    """Return the clients that are not among some, in their order; no id occurs twice on either side.

    Without this assumption NumPy searches for repeated ids, which takes 200 times as long.
    """
    others: np.ndarray = np.setdiff1d(clients, some, assume_unique=True)
    return others


def fill_up(chosen: np.ndarray, able: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Append other able clients, uniformly drawn, until there are ``count`` or no client is left."""
    if len(chosen) == count:
        return chosen
    others = rng.permutation(without(able, chosen))
    return np.concatenate([chosen, others[: count - len(chosen)]])


def shares(sizes: np.ndarray) -> np.ndarray:
    """Return each client's share p_k of the examples, float64 ``[n]``, sum one.

    Clients without examples have share zero; if no client has any, all shares are equal.

    Args:
        sizes: Examples of each client, >= 0, ``[n]``.
    """
    counts: np.ndarray = sizes.astype(np.float64)
    if not counts.any():
        counts += 1.0
    counts /= counts.sum()
    return counts


def log_shares(sizes: np.ndarray) -> np.ndarray:
    """Return ``log(shares(sizes))``, -inf for a share of zero."""
    with np.errstate(divide="ignore"):
        logs: np.ndarray = np.log(shares(sizes))
    return logs


def equal_weights(count: int) -> Tensor:
    """Return weight 1/K for each of K updates, float64 ``[K]``; a client drawn twice counts twice."""
    return torch.full((count,), 1.0 / max(count, 1), dtype=torch.float64)
