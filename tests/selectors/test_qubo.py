"""FedGS's 0/1 problem: reference optima, brute force, local optimality, limits."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flsel.selectors import _qubo
from flsel.selectors._qubo import Problem, cohort_problem, solve

CASES = json.loads((Path(__file__).parents[1] / "golden/fedgs_qubo.json").read_text())["cases"]


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_problem(seed: int, items: int, count: int, *, weight: float = 1.0) -> Problem:
    rng = draws(seed)
    distance = rng.random((items + 3, items + 3))
    distance = np.triu(distance, 1) + np.triu(distance, 1).T
    return Problem(rng.integers(0, 4, items) / 3, distance, rng.permutation(items + 3)[:items], weight, count)


def by_hand(problem: Problem, chosen: Any) -> float:
    pairs = itertools.combinations(problem.items[list(chosen)], 2)
    return sum(problem.gain[list(chosen)]) + problem.weight * sum(problem.distance[i, j] for i, j in pairs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("rule", ["reference", "paper"])
def test_optima_match_the_reference(case: Any, rule: str) -> None:
    problem = cohort_problem(
        np.array(case["counts"]),
        np.array(case["H"], dtype=float),
        np.array(case["available"]),
        count=min(case["M"], len(case["available"])),
        alpha=case["alpha"],
        paper=rule == "paper",
    )
    best = case[f"{rule}_objective_top3"][0]
    for entry in case[f"{rule}_objective_top3"]:
        members = np.searchsorted(problem.items, entry["S"])
        assert problem.value(members) == pytest.approx(entry["value"], abs=1e-9)
    for found in (
        solve(problem, restarts=0, moves=None, rng=draws()),
        _qubo._search(problem, restarts=8, moves=None, rng=draws()),
    ):
        assert problem.value(found) == pytest.approx(best["value"], abs=1e-9)


@given(seed=st.integers(0, 2**32), items=st.integers(1, 8), data=st.data(), weight=st.floats(0, 5))
def test_small_problems_are_solved_exactly(seed: int, items: int, data: Any, weight: float) -> None:
    problem = random_problem(seed, items, data.draw(st.integers(1, items)), weight=weight)
    best = max(by_hand(problem, s) for s in itertools.combinations(range(items), problem.count))
    found = solve(problem, restarts=0, moves=None, rng=draws())
    assert len(set(found.tolist())) == problem.count
    assert by_hand(problem, found) == pytest.approx(best, abs=1e-9)
    assert problem.value(found) == pytest.approx(best, abs=1e-9)
    assert problem.value(_qubo._search(problem, restarts=2, moves=None, rng=draws())) <= best + 1e-9


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), weight=st.floats(0.01, 3))
def test_a_search_ends_where_no_exchange_helps(seed: int, weight: float) -> None:
    problem = random_problem(seed, 40, 8, weight=weight)
    assert math.comb(40, 8) > 10**6
    found = solve(problem, restarts=3, moves=None, rng=draws(seed))
    assert sorted(set(found.tolist())) == found.tolist()
    assert problem.value(found) == pytest.approx(by_hand(problem, found), abs=1e-9)
    for out, new in itertools.product(found, set(range(40)) - set(found.tolist())):
        assert by_hand(problem, {*found.tolist(), new} - {out}) <= problem.value(found) + 1e-9


def test_a_search_is_nearly_exact() -> None:
    gaps = []
    for seed in range(40):
        problem = random_problem(seed, 16, 6, weight=0.3)
        exact = problem.value(solve(problem, restarts=0, moves=None, rng=draws()))
        found = problem.value(_qubo._search(problem, restarts=8, moves=None, rng=draws(seed)))
        gaps.append((exact - found) / exact)
    assert max(gaps) < 0.01
    assert np.count_nonzero(np.array(gaps) > 1e-12) <= 2


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=60), data=st.data())
def test_without_distances_the_smallest_counts_win(counts: list[int], data: Any) -> None:
    available = data.draw(st.lists(st.sampled_from(range(len(counts))), min_size=1, unique=True))
    count = data.draw(st.integers(1, len(available)))
    for paper in (False, True):
        problem = cohort_problem(
            np.array(counts), np.empty((0, 0)), np.array(available), count=count, alpha=0.0, paper=paper
        )
        found = solve(problem, restarts=2, moves=None, rng=draws())
        chosen = [counts[available[position]] for position in found]
        assert sorted(chosen) == sorted(counts[k] for k in available)[:count]


def test_a_cohort_of_one_has_no_distances() -> None:
    problem = cohort_problem(
        np.array([3, 1, 2]), 1.0 - np.eye(3), np.arange(3), count=1, alpha=5.0, paper=False
    )
    assert problem.weight == 0
    assert solve(problem, restarts=0, moves=None, rng=draws()).tolist() == [1]


def test_the_reference_weighs_distances_more_than_the_paper() -> None:
    counts, h = np.zeros(100), 1.0 - np.eye(100)
    weights = [
        cohort_problem(counts, h, np.arange(100), count=10, alpha=1.0, paper=paper).weight
        for paper in (False, True)
    ]
    assert weights[0] / weights[1] == pytest.approx(110)


def test_equal_sets_give_way_to_lower_positions() -> None:
    problem = Problem(np.zeros(6), 1.0 - np.eye(6), np.arange(6), 1.0, 3)
    assert solve(problem, restarts=0, moves=None, rng=draws()).tolist() == [0, 1, 2]


def test_a_search_depends_on_its_seed_only() -> None:
    problem = random_problem(0, 60, 9)
    one, other = (solve(problem, restarts=5, moves=None, rng=draws(3)) for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_restarts_only_help() -> None:
    for seed in range(10):
        problem = random_problem(seed, 60, 9)
        values = [problem.value(solve(problem, restarts=r, moves=None, rng=draws())) for r in (0, 2, 8)]
        assert values == sorted(values)


def test_a_limit_on_moves_gives_the_same_set_on_every_machine() -> None:
    problem = random_problem(0, 300, 20)
    values = []
    for moves in (0, 1, 3, 10, 10**6):
        one, other = (solve(problem, restarts=50, moves=moves, rng=draws()) for _ in range(2))
        np.testing.assert_array_equal(one, other)
        assert len(set(one.tolist())) == 20
        values.append(problem.value(one))
    assert values == sorted(values)
    assert values[0] < values[-1]
    assert values[-1] == problem.value(solve(problem, restarts=50, moves=None, rng=draws()))


def test_the_limit_on_work_ends_the_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(0, 60, 9)
    without = solve(problem, restarts=0, moves=None, rng=draws())
    monkeypatch.setattr(_qubo, "_WORK", 0)
    np.testing.assert_array_equal(solve(problem, restarts=10**6, moves=None, rng=draws()), without)


@pytest.mark.parametrize("count", [10, 100])
def test_three_thousand_clients(count: int) -> None:
    place = draws().random(3000)
    distance = np.abs(place[:, None] - place)
    problem = Problem(place, distance, np.arange(3000), 2 / (count * (count - 1)), count)
    assert len(set(solve(problem, restarts=8, moves=None, rng=draws()).tolist())) == count


@pytest.mark.parametrize("case", range(60))
def test_pruned_sets_give_the_optimum_of_all_sets(case: int) -> None:
    rng = draws(case)
    items, count = [(30, 4), (14, 6), (18, 5), (12, 9), (40, 3), (9, 2)][case % 6]
    points = rng.random((items, 3)) if case % 4 else np.eye(4)[rng.integers(0, 4, items)]  # the latter tie
    distance = np.sqrt(((points[:, None] - points[None]) ** 2).sum(2))
    counts, alpha = rng.integers(0, 2 + case % 5, items), (0.2, 1.0, 5.0)[case % 3]
    order = rng.permutation(items)
    problem = cohort_problem(counts, distance, order, count=count, alpha=alpha, paper=case % 7 == 0)
    sets = np.array(list(itertools.combinations(range(items), count)))
    pair = problem.weight * distance[np.ix_(order, order)]
    inside = sum(pair[sets[:, i], sets[:, j]] for i, j in itertools.combinations(range(count), 2))
    values = problem.gain[sets].sum(axis=1) + inside
    found = solve(problem, restarts=0, moves=None, rng=rng)
    assert problem.value(found) == pytest.approx(values.max(), rel=1e-12)
    if case % 4:
        np.testing.assert_array_equal(found, sets[values.argmax()])


def test_of_six_of_thirty_clients_few_sets_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(_qubo.np, "partition", lambda x, *a, **k: looked.append(len(x)) or np.sort(x, axis=1))
    for seed in range(10):
        solve(random_problem(seed, 30, 6), restarts=0, moves=None, rng=draws())
    assert max(looked) < 5_000  # of 593,775
