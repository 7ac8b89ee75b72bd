"""Facility location: reference vectors, lazy equals plain greedy, ties, who counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from flsel.selectors._facility import exact_greedy, lazy_greedy, represented, stochastic_greedy

CASES = json.loads((Path(__file__).parents[1] / "golden/09_divfl_greedy.json").read_text())["cases"]


def cost(distance: np.ndarray, chosen: Any, known: Any = slice(None)) -> float:
    return float(distance[np.array(chosen)].min(axis=0)[known].sum())


def everyone(distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(len(distance)), np.ones(len(distance), dtype=bool)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_cohorts_match_the_reference(case: Any) -> None:
    distance = np.array(case["norm_diff"])
    clients, known = everyone(distance)
    for entry in case["by_K"]:
        for choose in (exact_greedy, lazy_greedy):
            chosen = choose(distance, clients, known, count=entry["K"])
            assert cost(distance, chosen) == pytest.approx(entry["greedy_objective"], abs=1e-9)
            if entry["set_is_unambiguous"]:
                assert sorted(chosen) == entry["greedy_set"]
        gamma = represented(distance, np.array(entry["greedy_set"]), known)
        assert gamma.tolist() == entry["DERIVED_gamma_of_greedy_set"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_order_matches_the_reference_up_to_the_first_tie(case: Any) -> None:
    distance = np.array(case["norm_diff"])
    clients, known = everyone(distance)
    gaps = case["greedy_gap_best_to_second_per_step"]
    clear = next((step for step, gap in enumerate(gaps) if gap is None or gap < 1e-9), len(gaps))
    assert clear > 0
    for choose in (exact_greedy, lazy_greedy):
        chosen = choose(distance, clients, known, count=len(distance))
        assert chosen[:clear] == case["greedy_selection_order"][:clear]
        assert sorted(chosen) == list(range(len(distance)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_stochastic_cohorts_match_the_reference_for_its_draws(case: Any) -> None:
    distance = np.array(case["norm_diff"])
    clients, known = everyone(distance)
    for entry in case["by_K"]:
        for run in entry["stochastic"]:
            chosen = stochastic_greedy(
                distance,
                clients,
                known,
                count=entry["K"],
                rho=run["subsample"],
                rng=np.random.RandomState(run["np_random_seed"]),
            )
            assert cost(distance, chosen) == pytest.approx(run["objective"], abs=1e-9)


def world(seed: int, clients: int, *, whole: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distances, candidates and known clients; whole numbers make ties that are exact."""
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 4, (clients, 2)) if whole else rng.normal(size=(clients, 3))
    distance = cdist(points, points, "cityblock" if whole else "euclidean")
    known = rng.random(clients) < 0.8
    distance[~known] = distance[:, ~known] = 0.0
    return distance, np.flatnonzero(known & (rng.random(clients) < 0.7)), known


@given(seed=st.integers(0, 2**32), clients=st.integers(1, 90), whole=st.booleans(), data=st.data())
def test_lazy_greedy_is_greedy(seed: int, clients: int, whole: bool, data: Any) -> None:
    distance, candidates, known = world(seed, clients, whole=whole)
    count = data.draw(st.integers(0, len(candidates)))
    plain = exact_greedy(distance, candidates, known, count=count)
    assert lazy_greedy(distance, candidates, known, count=count) == plain
    assert len(set(plain)) == count
    assert set(plain) <= set(candidates.tolist())


@given(seed=st.integers(0, 2**32), clients=st.integers(1, 12), whole=st.booleans())
def test_every_step_takes_the_least_cost_and_of_equals_the_lowest_id(
    seed: int, clients: int, whole: bool
) -> None:
    distance, candidates, known = world(seed, clients, whole=whole)
    chosen = list[int]()
    for best in exact_greedy(distance, candidates, known, count=len(candidates)):
        costs = {int(k): cost(distance, [*chosen, k], known) for k in candidates if k not in chosen}
        least = min(costs.values())
        assert best == min(k for k, value in costs.items() if value <= least + 1e-9)
        chosen.append(best)


@given(seed=st.integers(0, 2**32), clients=st.integers(1, 30), rho=st.floats(0.01, 1.0), data=st.data())
def test_stochastic_greedy_is_a_cohort_of_candidates(seed: int, clients: int, rho: float, data: Any) -> None:
    distance, candidates, known = world(seed, clients, whole=False)
    count = data.draw(st.integers(0, len(candidates)))
    chosen = stochastic_greedy(
        distance, candidates, known, count=count, rho=rho, rng=np.random.default_rng(seed)
    )
    assert len(set(chosen)) == count
    assert set(chosen) <= set(candidates.tolist())
    if rho == 1.0:
        assert chosen == exact_greedy(distance, candidates, known, count=count)


@given(
    seed=st.integers(0, 2**32), clients=st.integers(1, 40), rho=st.sampled_from([0.1, 0.5]), data=st.data()
)
def test_lazy_subsets_find_what_plain_ones_do(seed: int, clients: int, rho: float, data: Any) -> None:
    distance, candidates, known = world(seed, clients, whole=False)
    count = data.draw(st.integers(0, len(candidates)))
    chosen = stochastic_greedy(
        distance, candidates, known, count=count, rho=rho, rng=np.random.default_rng(seed)
    )
    rng, size, expected = np.random.default_rng(seed), max(count, int(rho * len(candidates))), list[int]()
    rest = candidates
    for _ in range(count):
        some = rest if size >= len(rest) else np.sort(rng.choice(rest, size, replace=False))
        costs = np.array([cost(distance, [*expected, client], known) for client in some])
        expected.append(int(some[(costs <= costs.min() * (1 + 1e-12)).argmax()]))
        rest = rest[rest != expected[-1]]
    assert chosen == expected


def test_far_mutual_neighbours_tie_and_the_lower_id_wins() -> None:
    points = np.array([[0.0], [0.1], [0.2], [100.0], [100.3]])
    distance = cdist(points, points)
    for choose in (exact_greedy, lazy_greedy):
        assert choose(distance, *everyone(distance), count=2) == [2, 3]


def test_equal_clients_give_way_to_the_lowest_ids() -> None:
    distance = np.zeros((5, 5))
    for choose in (exact_greedy, lazy_greedy):
        assert choose(distance, *everyone(distance), count=3) == [0, 1, 2]


def test_clients_that_are_away_want_a_chosen_one_near() -> None:
    points = np.array([[0.0], [4.0], [6.0], [6.1], [6.2]])
    distance = cdist(points, points)
    known = np.ones(5, dtype=bool)
    assert exact_greedy(distance, np.array([0, 1]), known, count=1) == [1]
    known[2:] = False
    distance[2:] = distance[:, 2:] = 0.0
    assert exact_greedy(distance, np.array([0, 1]), known, count=1) == [0]


def test_greedy_is_within_its_bound_of_the_optimum() -> None:
    for case in CASES:
        distance = np.array(case["norm_diff"])
        worst = distance.max(axis=1).sum()
        for entry in case["by_K"]:
            saved = worst - cost(distance, exact_greedy(distance, *everyone(distance), count=entry["K"]))
            assert saved >= (1 - 1 / np.e) * (worst - entry["optimum_objective_brute_force"]) - 1e-9
