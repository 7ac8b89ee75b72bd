"""Rows of Clustered Sampling: exact sums, the reference's rows, and draws from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_views import view
from scipy.spatial.distance import cdist

from flsel.errors import UserError
from flsel.rng import generator
from flsel.selector import View
from flsel.selectors._strata import Shares, by_size, by_tree, draw_clients, pour, shares_of
from flsel.selectors._ward import ward

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CASES = json.loads((GOLDEN / "07_clustered_sampling_alg1.json").read_text())["cases"]
SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=15)


def shares_in(view: View) -> Shares:
    return shares_of(view.pool, view.pool_sizes, view.clients_per_round)


def table(rows, clients, capacity):
    """R times Q as a dense matrix of integers, ``[m, clients]``."""
    dense = np.zeros((rows.row.max() + 1, clients), dtype=np.int64)
    np.add.at(dense, (rows.row, rows.client), rows.mass)
    assert (rows.mass > 0).all()
    assert (np.diff(rows.row) >= 0).all()
    assert (dense.sum(axis=1) == capacity).all()
    return dense


def tree_of(clients, seed):
    points = generator(seed, "points").normal(size=(clients, 2))
    return ward(cdist(points, points))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_rows_by_size_are_the_exact_ones(case):
    sizes, m = np.array(case["n_samples"]), case["m"]
    dense = table(by_size(m * sizes, sizes.sum()), len(sizes), sizes.sum())
    np.testing.assert_allclose(
        dense / sizes.sum(), case["DERIVED_exact_R_order_size_desc_index_asc"], atol=1e-15
    )
    np.testing.assert_array_equal(dense.sum(axis=0), m * sizes)


def test_equal_clients_never_fail_whatever_their_number():
    for clients in range(1, 80):
        for m in range(1, clients + 1):
            rows = by_size(np.full(clients, m), clients)
            dense = table(rows, clients, clients)
            assert dense.shape[0] == m
            assert (dense.sum(axis=0) == m).all()
            assert len(rows.mass) <= clients + m


@given(SIZES, st.integers(1, 15), st.integers(0, 10**6))
def test_rows_and_columns_have_exact_sums(sizes, m, seed):
    sizes = np.array(sizes)
    rng = generator(seed, "test")
    capacity = int(sizes.sum())
    for rows in (
        by_size(m * sizes, capacity),
        by_tree(tree_of(len(sizes), seed), m * sizes, capacity, rng),
        pour(rng.permutation(len(sizes)), m * sizes, capacity),
    ):
        dense = table(rows, len(sizes), capacity)
        assert dense.shape[0] == m
        np.testing.assert_array_equal(dense.sum(axis=0), m * sizes)


@given(SIZES, st.integers(1, 15), st.integers(0, 10**6))
def test_variance_is_at_most_that_of_multinomial_sampling(sizes, m, seed):
    sizes = np.array(sizes)
    rows = by_tree(tree_of(len(sizes), seed), m * sizes, int(sizes.sum()), generator(seed, "test"))
    r, p = table(rows, len(sizes), sizes.sum()) / sizes.sum(), sizes / sizes.sum()
    assert ((r * (1 - r)).sum(axis=0) / m**2 <= p * (1 - p) / m + 1e-12).all()
    assert (1 - np.prod(1 - r, axis=0) >= 1 - (1 - p) ** m - 1e-12).all()


@pytest.mark.parametrize(
    ("sizes", "m", "whole"),
    [([900, 500, 60, 50, 40, 30, 20, 10], 4, {0: 2, 1: 1}), ([6, 2], 4, {0: 3, 1: 1}), ([5], 3, {0: 3})],
)
def test_a_client_above_a_rows_share_gets_whole_rows_first(sizes, m, whole):
    sizes = np.array(sizes)
    rows = by_tree(tree_of(len(sizes), 0), m * sizes, int(sizes.sum()), generator(0, "test"))
    dense = table(rows, len(sizes), sizes.sum())
    for client, count in whole.items():
        assert (dense[:, client] == sizes.sum()).sum() == count


def test_as_many_rows_as_equal_clients_is_everyone():
    for rows in (
        by_size(np.full(6, 6), 6),
        by_tree(tree_of(6, 1), np.full(6, 6), 6, generator(0, "test")),
    ):
        dense = table(rows, 6, 6)
        assert sorted(map(tuple, dense)) == sorted(map(tuple, 6 * np.eye(6, dtype=np.int64)))


def test_draws_follow_the_rows():
    sizes = np.array([31, 97, 12, 55, 140, 73, 20, 88])
    rows = by_size(3 * sizes, int(sizes.sum()))
    r = table(rows, len(sizes), sizes.sum()) / sizes.sum()
    times, hits = 4000, np.zeros_like(r)
    for seed in range(times):
        hits[np.arange(3), draw_clients(rows, int(sizes.sum()), generator(seed, "test"))] += 1
    assert (np.abs(hits / times - r) <= 5 * np.sqrt(r * (1 - r) / times) + 1e-12).all()


def test_the_pool_sets_capacity_and_number_of_rows():
    shares = shares_in(view([5, 0, 3, 9, 4], 2, absent=[3]))
    assert shares.clients.tolist() == [0, 2, 4]
    assert shares.masses.tolist() == [10, 6, 8]
    assert shares.capacity == 12
    assert shares_in(view([5, 0, 3, 9, 4], 9, absent=[3])).masses.tolist() == [15, 9, 12]
    empty = shares_in(view([0, 0, 7], 1, absent=[2]))
    assert empty.clients.tolist() == [0, 1]
    assert empty.masses.tolist() == [1, 1]


def test_more_examples_than_integers_hold_are_refused():
    sizes = [10**15] * 100
    assert shares_in(view(sizes, 50)).masses.sum() == 5 * 10**18
    with pytest.raises(
        UserError, match=r"clients_per_round times the examples .* must be below 9\.2e18 .* got 1e\+19"
    ):
        shares_in(view(sizes, 100))
