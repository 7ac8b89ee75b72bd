"""Shapley values of a game: what each player adds, on average over all orders of the players."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np

Value = Callable[[tuple[int, ...]], float]
"""Returns the worth of a coalition, whose players are ascending."""

_WINDOW, _FEWEST, _CLOSE = 10, 20, 0.01


def exact(value: Value, players: int) -> np.ndarray:
    """Return the Shapley values from all 2^n coalitions.

    Args:
        value: The game.
        players: n, >= 1.

    Returns:
        Float64 ``[n]``, sum ``value(all) - value(none)``.
    """
    found = np.zeros(players)
    for size in range(players + 1):
        inside = 1.0 / (players * math.comb(players - 1, size - 1)) if size else 0.0
        outside = 1.0 / (players * math.comb(players - 1, size)) if size < players else 0.0
        for coalition in combinations(range(players), size):
            worth = value(coalition)
            shift = np.full(players, -outside * worth)
            shift[list(coalition)] = inside * worth
            found += shift
    return found


def sampled(
    value: Value, players: int, rng: np.random.Generator, *, sweeps: int, truncation: float
) -> np.ndarray:
    """Estimate the Shapley values from random orders, as GTG-Shapley does.

    In a sweep every player comes first once, and the others follow in a random order. Sweeps end when the
    last 10 running means of every player are within 1 % of the present one.

    Args:
        value: The game; a coalition is asked for once.
        players: n, >= 1.
        rng: Source of the orders.
        sweeps: Most sweeps, >= 1.
        truncation: If the worth is closer than this to that of all players, the next player adds nothing. All
            values are zero if the worth of all players is that close to the worth of none.

    Returns:
        Float64 ``[n]``; not finite where a worth that was asked for is not.
    """
    known: dict[tuple[int, ...], float] = {}

    def worth(coalition: tuple[int, ...]) -> float:
        if coalition not in known:
            known[coalition] = value(coalition)
        return known[coalition]

    none, everybody = worth(()), worth(tuple(range(players)))
    total = np.zeros(players)
    means: list[np.ndarray] = []
    if abs(everybody - none) < truncation:
        return total
    for _ in range(sweeps):
        for first in range(players):
            others = rng.permutation(np.delete(np.arange(players), first))
            inside: list[int] = []
            before = none
            for player in (first, *others.tolist()):
                inside.append(player)
                after = before if abs(everybody - before) < truncation else worth(tuple(sorted(inside)))
                total[player] += after - before
                before = after
            means.append(total / (len(means) + 1))
        if not np.isfinite(total).all() or _settled(means):
            break
    return means[-1]


def _settled(means: list[np.ndarray]) -> bool:
    """Return whether the running means of all players have converged."""
    if len(means) < _FEWEST:
        return False
    changes = np.abs(np.array(means[-_WINDOW:]) - means[-1]).mean(axis=0)
    return bool((changes <= _CLOSE * np.abs(means[-1])).all())
