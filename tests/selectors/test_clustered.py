"""Clustered Sampling by similarity: reference matrices and cuts, kept distances, large populations."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_views import chosen, view

from flsel.errors import UserError
from flsel.rng import generator
from flsel.selector import Need, Plan, Updates
from flsel.selectors import _similarity, _sketch, clustered
from flsel.selectors._pairwise import squared_lengths
from flsel.selectors._similarity import dissimilarities, leaf_order
from flsel.selectors._sketch import SKETCH, sketched
from flsel.selectors._strata import by_tree
from flsel.selectors._ward import cut_by_mass, ward
from flsel.selectors.clustered import ClusteredSampling

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "08_clustered_sampling_alg2.json"
CASES = json.loads(GOLDEN.read_text())["cases"]
BLOCKS = [(case, kind) for case in CASES for kind in case["by_similarity"]]
NAMES = [f"{case['name']}-{kind}" for case, kind in BLOCKS]


def at(sizes, clients_per_round, round=0, **more):
    return replace(view(sizes, clients_per_round, needs=Need.DELTAS, **more), round=round)


def updates(clients, deltas):
    ones = torch.ones(len(clients), dtype=torch.int64)
    if not isinstance(deltas, dict):
        deltas = {"theta": torch.as_tensor(deltas)}
    return Updates(Plan.star(clients), ones, ones, Need.DELTAS, {"deltas": deltas})


def told(selector, sizes, deltas):
    """Give every client the update in its row."""
    selector.reset(torch.tensor(sizes), 2)
    everyone = range(len(sizes))
    selector.observe(at(sizes, len(sizes)), updates(everyone, deltas), torch.ones(len(sizes)))
    return selector


def stack(case):
    per_client = case["gradients_per_client_list_of_tensors"]
    tensors = [[torch.tensor(t, dtype=torch.float64) for t in client] for client in per_client]
    return {str(i): torch.stack(parts) for i, parts in enumerate(zip(*tensors, strict=True))}


def dense(rows, clients):
    table = np.zeros((rows.row.max() + 1, clients), dtype=np.int64)
    np.add.at(table, (rows.row, rows.client), rows.mass)
    return table


@pytest.mark.parametrize(("case", "kind"), BLOCKS, ids=NAMES)
def test_distances_cut_and_rows_are_the_reference_ones(case, kind):
    expected, m = case["by_similarity"][kind], case["m"]
    sizes = np.array(case["n_samples"])
    selector = told(ClusteredSampling(kind), sizes.tolist(), stack(case))
    matrix = selector.distance_.numpy()
    np.testing.assert_allclose(matrix, expected["D"], rtol=1e-9, atol=1e-9)
    tree, masses = ward(matrix), m * sizes
    np.testing.assert_allclose(
        tree[:, 2], np.array(expected["Z_ward_rows_as_points"])[:, 2], rtol=1e-9, atol=1e-9
    )
    labels = cut_by_mass(tree, masses, int(sizes.sum()))
    clusters = {frozenset(np.flatnonzero(labels == c)) for c in set(labels)}
    assert clusters == {frozenset(group) for group in expected["cut_partition"]}
    table = dense(by_tree(tree, masses, int(sizes.sum()), generator(0, "test")), len(sizes))
    assert (table.sum(axis=1) == sizes.sum()).all()
    np.testing.assert_array_equal(table.sum(axis=0), masses)
    ranked = sorted(expected["cut_partition"], key=lambda group: -sizes[group].sum())
    for group in ranked[:m]:
        shared = (table[:, group] == masses[group]).all(axis=1)
        assert shared.any() or len({sizes[g].sum() for g in ranked}) < len(ranked)
    if all(len(group) == 1 for group in ranked[m:]):
        reference = np.array(expected["results"][0]["R"])
        found = sorted(map(tuple, np.round(table / sizes.sum(), 9)))
        np.testing.assert_allclose(found, sorted(map(tuple, np.round(reference, 9))), atol=1e-8)


@given(
    st.sampled_from(["cosine", "L1", "L2"]),
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), min_size=1, max_size=6),
    st.integers(0, 10**6),
)
def test_kept_distances_are_those_of_the_last_updates(kind, cohorts, seed):
    rng, last = generator(seed, "test"), np.zeros((6, 7))
    selector = ClusteredSampling(kind)
    selector.reset(torch.ones(6, dtype=torch.int64), 2)
    for cohort in cohorts:
        last[cohort] = rng.normal(size=(len(cohort), 7))
        selector.observe(at([1] * 6, 3), updates(cohort, last[cohort].copy()), torch.ones(len(cohort)))
    np.testing.assert_array_equal(selector.rows_, last)
    np.testing.assert_allclose(selector.distance_, dissimilarities(last, last, kind), rtol=1e-12, atol=1e-12)


def test_a_client_drawn_twice_is_stored_once():
    selector = ClusteredSampling()
    selector.reset(torch.ones(3, dtype=torch.int64), 2)
    selector.observe(at([1] * 3, 3), updates([1, 1, 0], [[1.0, 2.0], [1.0, 2.0], [3.0, 0.0]]), torch.ones(3))
    assert selector.rows_.tolist() == [[3.0, 0.0], [1.0, 2.0], [0.0, 0.0]]
    assert selector.distance_[0, 1] == pytest.approx(math.atan2(2, 1))


@pytest.mark.parametrize("kind", ["cosine", "L1", "L2"])
@pytest.mark.parametrize("report", [math.nan, math.inf, 1e300])
def test_an_update_that_is_no_number_leaves_the_old_one(kind, report):
    selector = told(ClusteredSampling(kind), [1] * 3, torch.eye(3, dtype=torch.float64))
    state = {name: value.clone() for name, value in selector.state_dict().items()}
    broken = torch.tensor([[0.0, report, 0.0]], dtype=torch.float64)
    selector.observe(at([1] * 3, 1), updates([1], broken), torch.ones(1))
    assert all(torch.equal(value, state[name]) for name, value in selector.state_dict().items())


def test_similar_clients_share_a_row():
    axes = torch.eye(3, dtype=torch.float64).repeat_interleave(2, dim=0)
    selector = told(ClusteredSampling(), [5] * 6, axes + 0.01)
    for seed in range(50):
        plan = chosen(selector.select(at([5] * 6, 3, 1, seed=seed)))
        assert sorted(k // 2 for k in plan) == [0, 1, 2]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("sizes", [[31, 97, 12, 55, 140, 73], [900, 50, 40, 30, 20, 10]])
def test_weights_are_unbiased(known, sizes):
    selector = ClusteredSampling()
    selector.reset(torch.tensor(sizes), 2)
    if known:
        told(selector, sizes, torch.from_numpy(generator(0, "test").normal(size=(6, 4))))
    total = np.zeros(6)
    for seed in range(1000):
        now = at(sizes, 3, 1, seed=seed, absent=[2])
        plan = chosen(selector.select(now))
        np.add.at(total, plan, selector.weigh(now, updates(plan, np.zeros((len(plan), 4)))).numpy())
    p = np.array(sizes) * (np.arange(6) != 2)
    np.testing.assert_allclose(total / 1000, p / p.sum(), atol=5 * math.sqrt(0.25 / 3 / 1000))


def test_first_rounds_are_algorithm_1():
    selector = ClusteredSampling()
    selector.reset(torch.tensor([9, 9, 1, 1]), 2)
    for seed in range(20):
        plan = chosen(selector.select(at([9, 9, 1, 1], 2, seed=seed)))
        assert plan[0] in (0, 1)
    alone = told(ClusteredSampling(), [1] * 4, [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert not alone.distance_.any()
    assert len(chosen(alone.select(at([1] * 4, 2)))) == 2


def test_warm_up_is_multinomial():
    selector = told(ClusteredSampling(warm_up=3), [1] * 4, torch.eye(4, dtype=torch.float64))
    plans = [[chosen(selector.select(at([1] * 4, 4, t, seed=s))) for s in range(40)] for t in (2, 3)]
    assert any(len(set(plan)) < 4 for plan in plans[0])
    assert all(sorted(plan) == [0, 1, 2, 3] for plan in plans[1])


@given(st.integers(0, 10**6), st.sampled_from([64, 1024]))
def test_sketches_keep_lengths_and_angles(seed, length):
    rows = generator(seed, "test").normal(size=(3, 5000))
    sketch = sketched(rows, length)
    assert sketch.shape == (3, length)
    np.testing.assert_array_equal(sketched(rows[1:2], length), sketch[1:2])
    np.testing.assert_allclose(sketched(2 * rows, length), 2 * sketch, rtol=1e-12)
    np.testing.assert_allclose(sketch @ sketch.T / 5000, rows @ rows.T / 5000, atol=6 * math.sqrt(2 / length))


def test_sketch_is_what_is_kept():
    deltas = torch.from_numpy(generator(0, "test").normal(size=(4, 500))).float()
    selector = told(ClusteredSampling(sketch=32), [1] * 4, deltas)
    np.testing.assert_array_equal(selector.rows_.numpy(), sketched(deltas.numpy(), 32))
    assert selector.rows_.dtype == torch.float32


def test_a_sketch_that_overflows_is_not_kept():
    deltas = torch.ones(3, 500)
    deltas[1] = 3e38
    selector = told(ClusteredSampling(sketch=4), [1] * 3, deltas)
    assert selector.square_.isfinite().all()
    assert selector.rows_[1].tolist() == [0.0] * 4


def test_a_samples_tree_orders_everybody(monkeypatch):
    kinds = generator(0, "test").permutation(np.arange(300) % 3)
    rows = 10.0 * np.eye(3)[kinds] + generator(1, "test").normal(0, 0.1, (300, 3))
    rows[::10] = 0
    monkeypatch.setattr(_similarity, "_SAMPLE", 30)
    for kind in ("cosine", "L2"):
        order = leaf_order(rows, squared_lengths(rows), kind, generator(2, "test"))
        assert sorted(order.tolist()) == list(range(300))
        assert set(order[270:].tolist()) == set(range(0, 300, 10))
        assert np.count_nonzero(np.diff(kinds[order[:270]])) == 2
    one = leaf_order(rows[:2], squared_lengths(rows[:2]), "cosine", generator(2, "test"))
    assert one.tolist() == [1, 0]


def test_large_populations_keep_sketches_and_sample_their_tree(monkeypatch):
    monkeypatch.setattr(clustered, "EXACT", 50)
    monkeypatch.setattr(_sketch, "EXACT", 50)
    sizes = [2] * 90
    axes = torch.eye(3).repeat_interleave(100, dim=1).repeat(30, 1)
    selector = told(ClusteredSampling(), sizes, axes)
    assert selector.rows_.shape == (90, SKETCH)
    assert selector.distance_.shape == (0, 0)
    for seed in range(20):
        plan = chosen(selector.select(at(sizes, 3, 1, seed=seed)))
        assert sorted(k % 3 for k in plan) == [0, 1, 2]
    with pytest.raises(UserError, match="similarity must be cosine or L2 for more than 50 clients, got L1"):
        told(ClusteredSampling("L1"), sizes, axes)


def test_ten_thousand_clients():
    sizes, selector = [3] * 10_000, ClusteredSampling()
    selector.reset(torch.tensor(sizes), 10)
    selector.rows_ = torch.from_numpy(generator(0, "test").normal(size=(10_000, SKETCH))).float()
    for clients_per_round in (10, 100):
        now = at(sizes, clients_per_round, 5)
        plan = chosen(selector.select(now))
        selector.observe(
            now, updates(plan, torch.ones(clients_per_round, 1000)), torch.ones(clients_per_round)
        )
        assert len(plan) == clients_per_round


def test_updates_too_long_for_squared_distances_are_refused_and_angles_are_not():
    rows = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 1.0]], dtype=torch.float64) * 1e150
    for similarity in ("L2", "cosine"):
        selector = ClusteredSampling(similarity)
        selector.reset(torch.full((4,), 5), 2)
        now = view([5] * 4, 2, needs=Need.DELTAS)
        ones = torch.ones(4, dtype=torch.int64)
        answers = {"deltas": {"w": rows}}
        selector.observe(now, Updates(Plan.star(range(4)), ones, ones, Need.DELTAS, answers), torch.ones(4))
        if similarity == "cosine":
            assert sorted(k // 2 for k in chosen(selector.select(now))) == [0, 1]
        else:
            with pytest.raises(UserError, match="lower the learning rate"):
                selector.select(now)
