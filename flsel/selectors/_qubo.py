"""A quadratic 0/1 problem with a fixed number of ones: FedGS's choice of a cohort.

Z. Wang et al.: "FedGS", AAAI 2023, Eqs. 14 and 16: maximise, over the sets S of M' clients, the distance
between the chosen ones and the evenness of the sampling counts v.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

_SUBSETS = 10**6  # Most subsets to try one by one.
_ITEMS = 1500  # Most items for that: their distances are copied.
_WORK = 3 * 10**7  # Exchanges to look at before no further restart begins: a fraction of a second.


@dataclass(frozen=True)
class Problem:
    """Choose ``count`` of n items to maximise sum_i gain_i + weight * sum_{i<j} distance_ij.

    Attributes:
        gain: float64 ``[n]``.
        distance: Symmetric with zero diagonal, float64 ``[N, N]``; not read if ``weight`` is 0.
        items: Row in ``distance`` of each item, int64 ``[n]``.
        weight: >= 0.
        count: In 1..n.
    """

    gain: np.ndarray
    distance: np.ndarray
    items: np.ndarray
    weight: float
    count: int

    def row(self, position: np.integer[Any]) -> np.ndarray:
        """Return what item ``position`` adds to a set for each item in it, ``[n]``."""
        row: np.ndarray = self.weight * self.distance[self.items[position]][self.items]
        return row

    def value(self, chosen: np.ndarray) -> float:
        """Return the objective of a set of positions, int64 ``[count]``."""
        total = float(self.gain[chosen].sum())
        if self.weight > 0:
            where = self.items[chosen]
            total += self.weight * float(self.distance[np.ix_(where, where)].sum()) / 2
        return total


def cohort_problem(
    counts: np.ndarray, distance: np.ndarray, items: np.ndarray, *, count: int, alpha: float, paper: bool
) -> Problem:
    """Pose the choice of a cohort.

    Args:
        counts: How often each client was sampled, v, ``[N]``.
        distance: H, float64 ``[N, N]``.
        items: The n clients to choose from, int64 ``[n]``.
        count: M', in 1..n.
        alpha: Weight of the distances.
        paper: Weigh pairs as Eq. 14 does, alpha / (N (N - 1)) each way, where the reference code takes alpha
            times the mean distance of the chosen pairs: N (N - 1) / (M' (M' - 1)) times as much.
    """
    clients, choices = len(counts), len(items)
    share = count / clients if paper else count / choices
    z = 2 * (counts[items] - counts.mean() - share) + 1
    pairs = clients * (clients - 1) if paper else count * (count - 1)
    # A cohort of one has no pairs.
    weight = 2 * alpha / pairs if count > 1 else 0.0
    return Problem(-z / max(clients - 1, 1), distance, items, weight, count)


def solve(problem: Problem, *, restarts: int, moves: int | None, rng: np.random.Generator) -> np.ndarray:
    """Solve exactly where there are at most a million sets, else search for a good set.

    The search takes the best set of several descents: each completes a set greedily (the first an empty one,
    the others a random half) and exchanges one member at a time for the best non-member until none helps.
    Limits count work and not time, so that the set depends on nothing but the problem and the draws: no
    restart begins after 3 10^7 exchanges were looked at.

    Args:
        problem: At least one item; among equal sets lower positions are preferred.
        restarts: Descents after the first.
        moves: Most exchanges made in all descents together, >= 0, or None for no limit; descents that are
            cut, or could only construct a set, count with what they have.
        rng: Source of the random halves.

    Returns:
        Positions of the set, int64 ``[count]``.
    """
    items = len(problem.gain)
    if problem.weight == 0 or problem.count == items:
        return np.argsort(-problem.gain, kind="stable")[: problem.count]
    if items <= _ITEMS and math.comb(items, problem.count) <= _SUBSETS:
        return _best_of_all(problem)
    return _search(problem, restarts=restarts, moves=moves, rng=rng)


def _best_of_all(problem: Problem) -> np.ndarray:
    """Try all sets, or all sets of items to leave out where these are smaller."""
    items = len(problem.gain)
    if 2 * problem.count <= items:
        return _best_subset(problem)
    pair = problem.weight * problem.distance[np.ix_(problem.items, problem.items)]
    out = _best_subset(replace(problem, gain=-problem.gain - pair.sum(axis=1), count=items - problem.count))
    return np.setdiff1d(np.arange(items), out)


def _best_subset(problem: Problem) -> np.ndarray:
    """Return the first best set in lexicographic order, growing all promising sets member by member.

    Members to come add at most the sum of the largest promises. An item promises what it adds to the set and
    half of its largest distances to others. A set or a member with which even that is below the value of a
    local search is dropped.
    """
    gain, count = problem.gain, problem.count
    pair = problem.weight * problem.distance[np.ix_(problem.items, problem.items)]
    largest = np.sort(pair, axis=1)[:, : -count - 1 : -1]
    half = np.column_stack([np.zeros(len(pair)), largest.cumsum(axis=1) / 2])
    least, order = _least(problem), np.arange(len(gain))
    sets, value = np.arange(len(gain) - count + 1)[:, None], gain[: len(gain) - count + 1]
    adds = gain + pair[: len(sets)]  # adds[s, i]: what item i would add to set s.
    for size in range(1, count):
        coming = count - size
        promise = np.where(order > sets[:, -1:], adds + half[:, coming - 1], -np.inf)
        best = np.partition(promise, -coming, axis=1)[:, -coming:]
        spare = value + best.sum(axis=1) - least
        able = (promise >= (best[:, 0] - spare)[:, None]) & (spare >= 0)[:, None]
        parent, new = np.nonzero(able[:, : len(gain) - coming + 1])  # with room for the members to come
        sets, value = np.column_stack([sets[parent], new]), value[parent] + adds[parent, new]
        if coming > 1:
            adds = adds[parent] + pair[new]
    chosen: np.ndarray = sets[value.argmax()]
    return chosen


def _least(problem: Problem) -> float:
    """Return what the best set is worth at least, less than by rounding."""
    descent = _Descent(problem, np.empty(0, dtype=np.int64))
    while descent.improve():
        pass
    size = np.abs(problem.gain[descent.members]).sum() + abs(problem.value(descent.members))
    return problem.value(descent.members) - 1e-9 * float(size)


def _search(problem: Problem, *, restarts: int, moves: int | None, rng: np.random.Generator) -> np.ndarray:
    left = math.inf if moves is None else moves
    work, best, most = 0, np.empty(0, dtype=np.int64), -math.inf
    for start in _starts(problem, restarts, rng):
        if len(best) and (work > _WORK or left == 0):
            break
        descent = _Descent(problem, start)
        while left > 0 and descent.improve():
            left -= 1
        work += descent.work
        value = problem.value(descent.members)
        if value > most:
            best, most = descent.members, value
    return np.sort(best)


def _starts(problem: Problem, restarts: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    yield np.empty(0, dtype=np.int64)
    for _ in range(restarts):
        yield rng.choice(len(problem.gain), problem.count // 2, replace=False)


class _Descent:
    """A set that moves to a local optimum; ``rows[k]`` is what member k adds to every item, ``[n]``."""

    def __init__(self, problem: Problem, start: np.ndarray) -> None:
        self.problem = problem
        self.members = np.empty(problem.count, dtype=np.int64)
        self.rows = np.empty((problem.count, len(problem.gain)))
        self.reach = problem.gain.copy()  # What an item would add to the objective.
        self.enter = np.empty_like(self.rows)
        self.work = 0
        for place in range(problem.count):
            new = start[place] if place < len(start) else self._outside(place).argmax()
            self.members[place] = new
            self.rows[place] = problem.row(new)
            self.reach += self.rows[place]

    def improve(self) -> bool:
        """Make the best exchange; False if none helps beyond rounding."""
        leave = self.reach[self.members]
        enter = np.subtract(self._outside(self.problem.count), self.rows, out=self.enter)
        self.work += enter.size
        best = enter.argmax(axis=1)
        change = enter[np.arange(len(best)), best] - leave
        out = change.argmax()
        if change[out] <= 1e-12 * (1.0 + np.abs(leave).max()):
            return False
        row = self.problem.row(best[out])
        self.reach += row - self.rows[out]
        self.members[out], self.rows[out] = best[out], row
        return True

    def _outside(self, members: int) -> np.ndarray:
        outside = self.reach.copy()
        outside[self.members[:members]] = -np.inf
        return outside
