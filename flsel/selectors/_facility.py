"""Facility location: choose few clients so that every client is near a chosen one.

Minimise G(S) = sum_i min_{s in S} d_is over sets of K clients (equivalently, maximise the monotone submodular
L_0 - G), greedily: R. Balakrishnan et al.: "Diverse Client Selection for Federated Learning via Submodular
Maximization", ICLR 2022; the lazy evaluation is M. Minoux's (1978), the stochastic one B. Mirzasoleiman et
al.'s (AAAI 2015). Costs that agree to 1e-12 are equal (to 1e-6, if distances are in single precision), and of
equals the lowest id is taken: distances are symmetric, so two mutual nearest neighbours far from S always
tie.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_TIE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-6}
_BLOCK = 64  # Rows of the distance matrix looked at together.


def represented(distance: np.ndarray, chosen: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Count the clients that each chosen one is nearest to (gamma), the first of equally near ones.

    Args:
        distance: ``[N, N]``.
        chosen: Clients, int64 ``[K]``, K >= 1.
        known: Clients that count, bool ``[N]``.

    Returns:
        Int64 ``[K]``.
    """
    return np.bincount(distance[chosen][:, known].argmin(axis=0), minlength=len(chosen))


def exact_greedy(distance: np.ndarray, candidates: np.ndarray, known: np.ndarray, *, count: int) -> list[int]:
    """Add the client with the least cost, looking at all candidates each time; O(K N^2).

    Args:
        distance: Symmetric, zero diagonal, float ``[N, N]``; zero to and from clients not ``known``.
        candidates: Ids of known clients to choose from, ascending, int64 ``[n]``.
        known: Clients that need a chosen client near them, bool ``[N]``.
        count: K <= n.

    Returns:
        Ids in order of choice.
    """
    nearest, chosen, rest = _initial_costs(known, distance), list[int](), candidates
    for _ in range(count):
        best = _least(_costs(distance, rest, nearest), rest, _TIE[distance.dtype])
        chosen.append(best)
        nearest, rest = np.minimum(nearest, distance[best]), rest[rest != best]
    return chosen


def stochastic_greedy(
    distance: np.ndarray,
    candidates: np.ndarray,
    known: np.ndarray,
    *,
    count: int,
    rho: float,
    rng: np.random.Generator | np.random.RandomState,
) -> list[int]:
    """Look only at a random subset of the remaining candidates each time, lazily.

    Args:
        distance: As for :func:`exact_greedy`.
        candidates: As for :func:`exact_greedy`.
        known: As for :func:`exact_greedy`.
        count: K <= n.
        rho: Size of the subsets as a share of the n candidates, but at least K.
        rng: Draws them.

    Returns:
        Ids in order of choice.
    """
    size = max(count, int(rho * len(candidates)))

    def some(rest: np.ndarray) -> np.ndarray:
        return rest if size >= len(rest) else np.sort(rng.choice(rest, size, replace=False))

    return _lazily(distance, candidates, known, count=count, look=some)


def lazy_greedy(distance: np.ndarray, candidates: np.ndarray, known: np.ndarray, *, count: int) -> list[int]:
    """Choose what :func:`exact_greedy` does, looking again only at candidates that may be best."""
    return _lazily(distance, candidates, known, count=count, look=lambda rest: rest)


def _lazily(
    distance: np.ndarray,
    candidates: np.ndarray,
    known: np.ndarray,
    *,
    count: int,
    look: Callable[[np.ndarray], np.ndarray],
) -> list[int]:
    """Add the best of the candidates that ``look`` takes out of the remaining ones, ascending, each time.

    What a client saves never grows as the set does, so its last saving bounds its next one.
    """
    nearest, chosen, rest = _initial_costs(known, distance), list[int](), candidates
    saving, tie = np.full(len(distance), np.inf), _TIE[distance.dtype]
    total = slack = 0.0
    for step in range(count):
        some = look(rest)
        if step == 0:
            costs = _costs(distance, some, nearest)
            slack = tie * float(costs.max())
        else:
            bounds = total - saving[some] - slack
            costs = _costs_of_promising(distance, some, nearest, bounds=bounds)
            saving[some] = np.where(np.isfinite(costs), total - costs, saving[some])
        best = _least(costs, some, tie)
        chosen.append(best)
        nearest = np.minimum(nearest, distance[best])
        rest, total = rest[rest != best], float(nearest.sum(dtype=np.float64))
    return chosen


def _costs_of_promising(
    distance: np.ndarray, rest: np.ndarray, nearest: np.ndarray, *, bounds: np.ndarray
) -> np.ndarray:
    """Return the costs of those candidates whose lower bound is not above the least cost, else infinity."""
    costs = np.full(len(rest), np.inf)
    order, seen, tie = np.argsort(bounds), 0, _TIE[distance.dtype]
    while seen < len(rest) and bounds[order[seen]] <= costs.min() * (1 + tie):
        some = order[seen : seen + _BLOCK]
        costs[some] = _costs(distance, rest[some], nearest)
        seen += len(some)
    return costs


def _initial_costs(known: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Return the cost of every client before any is chosen: infinite, or 0 where distances are unknown."""
    return np.where(known, np.inf, 0.0).astype(distance.dtype)


def _costs(distance: np.ndarray, clients: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """Return the cost after adding each client, ``[n]``; ``nearest`` is the cost of every one before."""
    costs = np.empty(len(clients))
    for first in range(0, len(clients), _BLOCK):
        rows = distance[clients[first : first + _BLOCK]]
        costs[first : first + _BLOCK] = np.minimum(rows, nearest, out=rows).sum(axis=1, dtype=np.float64)
    return costs


def _least(costs: np.ndarray, clients: np.ndarray, tie: float) -> int:
    return int(clients[(costs <= costs.min() * (1 + tie)).argmax()])
