"""Fed-CBS against the probabilities of all orders, the greedy limit, and cohorts known to be balanced."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from plain_views import chosen, view

from flsel.rng import generator
from flsel.selector import Need, View
from flsel.selectors.fedcbs import FedCBS, Imbalance

COUNTS = np.array([[6, 0, 0], [0, 5, 1], [2, 2, 2], [0, 1, 7], [3, 0, 4]])


class Labels:
    """Answers the label counts."""

    def __init__(self, counts: np.ndarray) -> None:
        self.counts = torch.from_numpy(counts)

    def labels(self) -> torch.Tensor:
        return self.counts


def seen(
    counts: np.ndarray, k: int, *, seed: int = 0, round: int = 0, absent: list[int] | None = None
) -> View:
    sizes = counts.sum(axis=1).tolist()
    made = view(sizes, k, seed=seed, absent=absent or [], needs=Need.LABELS, answers=Labels(counts))
    return replace(made, num_classes=counts.shape[1], round=round)


def drawn(selector: FedCBS, shown: View, participations: list[int] | None = None) -> list[int]:
    selector.reset(shown.sizes, shown.num_classes)
    if participations:
        selector.count_ = torch.tensor(participations)
    return chosen(selector.select(shown))


def qcid(cohort: tuple[int, ...], counts: np.ndarray) -> float:
    """By the matrix of inner products n_i n_j <alpha_i, alpha_j>, which is what the paper's server sees."""
    products = counts @ counts.T
    total = sum(int(counts[i].sum()) for i in cohort)
    return sum(products[i, j] for i in cohort for j in cohort) / total**2 - 1 / counts.shape[1]


def chances(counts: np.ndarray, k: int, *, lam: float, beta: float, t: int, seldom: list[int]) -> dict:
    """Probabilities of all ordered cohorts, with everything written out that cancels in a draw."""
    clients, found = range(len(counts)), {}
    for order in itertools.permutations(clients, k):
        p = 1.0
        for m in range(1, k + 1):

            def weight(i: int, before: tuple[int, ...] = order[: m - 1], m: int = m) -> float:
                inverse = qcid((*before, i), counts) ** (-beta * m)
                if m == 1:
                    return inverse + lam * math.sqrt(3 * math.log(t) / (2 * (1 + seldom[i])))
                return inverse * qcid(before, counts) ** (beta * (m - 1))

            p *= weight(order[m - 1]) / sum(weight(i) for i in clients if i not in order[: m - 1])
        found[order] = p
    return found


def test_the_measure_is_that_of_the_inner_products() -> None:
    rng = generator(0, "test")
    for _ in range(20):
        counts = rng.integers(0, 9, (6, 4)) + np.eye(6, 4, dtype=int)
        cohort = tuple(rng.permutation(6)[:3].tolist())
        growing = Imbalance(torch.from_numpy(counts).double())
        for client in cohort[:-1]:
            growing.add(client)
        expected = [qcid((*cohort[:-1], client), counts) for client in range(6)]
        np.testing.assert_allclose(growing.with_each(), expected, atol=1e-12)
    alone = Imbalance(torch.tensor([[5.0, 5.0], [3.0, 0.0], [0.0, 0.0]]).double())
    assert alone.with_each().tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize(("lam", "beta", "round"), [(0.0, 1.0, 0), (2.0, 0.5, 6), (10.0, 1.0, 20)])
def test_ordered_cohorts_have_the_papers_probabilities(lam: float, beta: float, round: int) -> None:
    counts, seldom, times = np.delete(COUNTS, 2, axis=0), [0, 3, 1, 7], 1500
    expected = chances(counts, 2, lam=lam, beta=beta, t=round + 1, seldom=seldom)
    assert sum(expected.values()) == pytest.approx(1.0)
    selector = FedCBS(lam, beta)
    hits = Counter(
        tuple(drawn(selector, seen(counts, 2, seed=seed, round=round), seldom)) for seed in range(times)
    )
    for order, p in expected.items():
        assert abs(hits[order] / times - p) <= 5 * math.sqrt(p * (1 - p) / times), (order, hits[order], p)


def test_a_large_exponent_is_greedy() -> None:
    rng = generator(1, "test")
    for seed in range(20):
        counts = rng.integers(0, 30, (7, 4)) + 1
        expected: list[int] = []
        for _ in range(4):
            left = [i for i in range(7) if i not in expected]
            expected.append(min(left, key=lambda i: qcid((*expected, i), counts)))
        assert drawn(FedCBS(0.0, 1e4), seen(counts, 4, seed=seed)) == expected


def test_balanced_triples_are_found() -> None:
    """Two of nine clients complete whoever is first, whatever its label."""
    counts = np.repeat(np.eye(3, dtype=int) * 10, 3, axis=0)
    cohorts = [drawn(FedCBS(beta=5.0), seen(counts, 3, seed=seed)) for seed in range(50)]
    assert all(sorted(client // 3 for client in cohort) == [0, 1, 2] for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) > 20


def test_who_took_part_seldom_comes_first_where_the_bonus_decides() -> None:
    counts = np.full((4, 2), 5) + np.array([[1, 0]] * 4)
    first = [
        drawn(FedCBS(1e9, 0.0), seen(counts, 1, seed=s, round=9), [99, 0, 99, 99])[0] for s in range(600)
    ]
    weights = np.array([0.1, 1.0, 0.1, 0.1])  # 1 / sqrt(1 + T)
    share = np.bincount(first, minlength=4) / 600
    np.testing.assert_allclose(share, weights / weights.sum(), atol=0.09)


def test_participations_are_counted_and_the_absent_are_not_drawn() -> None:
    selector = FedCBS()
    assert sorted(drawn(selector, seen(COUNTS, 3, absent=[0, 2]))) == [1, 3, 4]
    assert selector.count_.tolist() == [0, 1, 0, 1, 1]


def test_a_free_slot_balances_the_labels_of_those_in_flight() -> None:
    shown = seen(COUNTS, 1, absent=[0, 1])
    chance = Counter(
        drawn(FedCBS(lam=0.0, beta=2.0), replace(shown, running={0: 3, 1: 0}, rng=generator(seed, "t")))[0]
        for seed in range(4000)
    )
    weights = {i: qcid((0, 1, i), COUNTS) ** -2.0 for i in (2, 3, 4)}
    for client, weight in weights.items():
        assert chance[client] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)
