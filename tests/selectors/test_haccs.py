"""HACCS: clusters against distances written out, preferences by hand, and who is sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from plain_views import chosen, updates, view

from flsel.rng import generator
from flsel.selector import Need
from flsel.selectors.haccs import HACCS, clusters, preferences, quotas

COUNTS = np.array([[9, 1, 0], [8, 2, 0], [0, 9, 1], [0, 8, 2], [0, 0, 5], [3, 3, 4]])
SECONDS = np.array([4.0, 2.0, 1.0, 3.0, 6.0, 5.0])
SIZES = COUNTS.sum(axis=1).tolist()


class Answers:
    """Labels and durations from tables."""

    def labels(self) -> torch.Tensor:
        return torch.from_numpy(COUNTS)

    def durations(self, clients: list[int]) -> torch.Tensor:
        seconds = torch.from_numpy(SECONDS)[clients]
        return torch.stack([seconds, 0 * seconds, 0 * seconds], dim=1)


def shown(selector: HACCS, k: int, *, seed: int = 0, absent: tuple[int, ...] = ()) -> Any:
    return view(SIZES, k, seed=seed, absent=absent, needs=selector.needs, answers=Answers())


def fresh(**arguments: Any) -> HACCS:
    selector = HACCS(**arguments)
    selector.reset(torch.tensor(SIZES), 3)
    return selector


def connected(apart: np.ndarray, eps: float) -> set[frozenset[int]]:
    """Merge whoever is near until nothing changes."""
    found = [{i} for i in range(len(apart))]
    while True:
        near = next(
            (
                (a, b)
                for a in found
                for b in found
                if a is not b and any(apart[i, j] <= eps for i in a for j in b)
            ),
            None,
        )
        if near is None:
            return {frozenset(group) for group in found}
        found = [group for group in found if group not in near] + [near[0] | near[1]]


def groups(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == own).tolist()) for own in set(labels.tolist())}


@pytest.mark.parametrize("distance", ["hellinger", "euclidean"])
@pytest.mark.parametrize("eps", [0.1, 0.25, 0.6])
def test_clusters_are_connected_by_small_distances(distance: Any, eps: float) -> None:
    rng = generator(0, "test")
    for _ in range(10):
        counts = rng.dirichlet(np.full(4, 0.3), size=12) * rng.integers(5, 50, (12, 1))
        shares = counts / counts.sum(1, keepdims=True)
        apart = np.zeros((12, 12))
        for i in range(12):
            for j in range(12):
                if distance == "hellinger":
                    overlap = sum(math.sqrt(p * q) for p, q in zip(shares[i], shares[j], strict=True))
                    apart[i, j] = math.sqrt(max(1 - overlap, 0.0))
                else:
                    apart[i, j] = math.dist(shares[i], shares[j])
        assert groups(clusters(counts, eps, distance)) == connected(apart, eps)


def test_preferences_by_hand() -> None:
    """Mean squared losses 2.5 and 9, mean latencies 3 and 6: 1 - 3/6 and 0; 2.5/11.5 and 9/11.5."""
    member, losses = np.array([0, 0, 1]), np.array([1.0, 2.0, 3.0])
    found = preferences(member, losses, np.array([2.0, 4.0, 6.0]), 0.5)
    raw = np.array([0.5 * 0.5 + 0.5 * 2.5 / 11.5, 0.5 * 9 / 11.5])
    np.testing.assert_allclose(found, raw / raw.sum())
    assert preferences(member, losses, np.zeros(3), 0.0) == pytest.approx([2.5 / 11.5, 9 / 11.5])
    assert preferences(member, np.zeros(3), np.ones(3), 1.0).tolist() == [0.5, 0.5]


def test_shares_are_kept_in_whole_parts_and_in_the_mean() -> None:
    chance, size = np.array([0.55, 0.3, 0.15]), np.array([9, 9, 9])
    drawn = np.array([quotas(chance, size, 4, generator(seed, "draw")) for seed in range(3000)])
    assert (drawn.sum(axis=1) == 4).all()
    assert (drawn >= [2, 1, 0]).all()
    np.testing.assert_allclose(drawn.mean(axis=0), [2.55, 1.3, 0.15], atol=0.05)
    assert quotas(np.array([1.0, 0.0]), np.array([2, 3]), 4, generator(0, "draw")).tolist() == [2, 2]


def test_the_fastest_of_each_cluster_are_taken() -> None:
    selector = fresh()
    cohort = chosen(selector.select(shown(selector, 3)))
    assert groups(selector.cluster_.numpy()) == {frozenset(g) for g in ({0, 1}, {2, 3}, {4}, {5})}
    for fast, slow in ((1, 0), (2, 3)):
        assert slow not in cohort or fast in cohort
    everybody = chosen(selector.select(shown(selector, 6)))
    assert sorted(everybody) == list(range(6))


def test_clusters_with_large_losses_are_preferred() -> None:
    selector = fresh(rho=0.0)
    assert selector.needs == Need.LABELS | Need.OWN_LOSS
    seen = shown(selector, 6)
    order = chosen(selector.select(seen))
    back = updates(order, SIZES, [{2: 5.0, 3: 5.0}.get(k, 0.5) for k in order])
    selector.observe(seen, back, selector.weigh(seen, back))
    hits = np.zeros(6)
    for seed in range(400):
        hits[chosen(selector.select(shown(selector, 1, seed=seed)))] += 1
    expected = 25 / (25 + 3 * 0.25)
    assert (hits[2] + hits[3]) / 400 == pytest.approx(expected, abs=0.05)
    assert min(hits[2], hits[3]) > 100


def test_reports_that_are_not_finite_and_absent_clients() -> None:
    selector = fresh()
    seen = shown(selector, 2, absent=(2, 4))
    order = chosen(selector.select(seen))
    assert not {2, 4} & set(order)
    selector.observe(seen, updates(order, SIZES, [math.nan, 1.5]), torch.ones(2))
    assert selector.loss_.isnan().sum() == 5
    assert sorted(chosen(selector.select(shown(selector, 6, absent=(2, 4))))) == [0, 1, 3, 5]


def test_noise_is_drawn_once_and_moves_clusters() -> None:
    noised = {tuple(noised_clusters(seed)) for seed in range(20)}
    assert len(noised) > 3


def noised_clusters(seed: int) -> list[int]:
    selector = fresh(privacy=0.5)
    selector.select(shown(selector, 2, seed=seed))
    first = selector.cluster_.tolist()
    selector.select(shown(selector, 2, seed=seed + 100))
    assert selector.cluster_.tolist() == first
    return first
