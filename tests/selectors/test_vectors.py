"""Rows of stacked models: order, what is left out, and precision of products and distances."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from flsel.params import flatten
from flsel.selectors._pairwise import euclidean_distances, inner_products, nearest
from flsel.selectors._sketch import sketch_distances, sketched


def test_models_become_rows() -> None:
    stack = {"w": torch.arange(12.0).view(2, 2, 3), "b": torch.tensor([[7.0], [8.0]])}
    assert flatten(stack).tolist() == [[0, 1, 2, 3, 4, 5, 7], [6, 7, 8, 9, 10, 11, 8]]
    origin = {"w": torch.ones(2, 3), "b": torch.tensor([2.0])}
    assert flatten(stack, origin)[1].tolist() == [5, 6, 7, 8, 9, 10, 6]


def test_running_statistics_are_no_parameters() -> None:
    stack = {"norm.weight": torch.ones(2, 3), "norm.running_mean": torch.ones(2, 3), "s": torch.ones(2)}
    stack["norm.running_var"] = torch.ones(2, 3)
    assert flatten(stack).shape == (2, 4)


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 5),
    m=st.integers(1, 5),
    d=st.sampled_from([1, 7, 2000, 2049]),
)
def test_products_and_distances_match_their_definition(seed: int, n: int, m: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = (rng.normal(size=(rows, d)).astype(np.float32) for rows in (n, m))
    wide, against = one.astype(float), other.astype(float)
    np.testing.assert_allclose(inner_products(one, other), wide @ against.T, atol=1e-9)
    if n:
        np.testing.assert_allclose(euclidean_distances(one, other), cdist(wide, against), atol=1e-9)
        itself = inner_products(one, one)
        np.testing.assert_array_equal(itself, itself.T)


def test_equal_vectors_have_distance_zero() -> None:
    rows = np.random.default_rng(0).normal(size=(1, 5000)).astype(np.float32) + 100
    same = np.repeat(rows, 4, axis=0)
    np.testing.assert_array_equal(euclidean_distances(same, same), 0.0)
    near = same.copy()
    near[1, 0] += 1.0
    assert abs(euclidean_distances(near, near)[0, 1] - 1.0) < 1e-4


@given(seed=st.integers(0, 2**32), n=st.integers(1, 6), m=st.integers(1, 6), length=st.sampled_from([1, 64]))
def test_sketch_distances_match_their_definition(seed: int, n: int, m: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = (sketched(rng.normal(size=(k, 300)), length).astype(np.float32) for k in (n, m))
    other[0] = one[0]
    found = sketch_distances(one, other)
    assert found.dtype == np.float32
    assert found[0, 0] == 0
    np.testing.assert_allclose(found, cdist(one, other), atol=4e-3 * float(np.abs(one).sum()))


@given(seed=st.integers(0, 2**32), d=st.integers(1, 5), precision=st.sampled_from(["f4", "f8"]))
def test_nearest_points_are_those_at_the_least_distance_or_angle(seed: int, d: int, precision: str) -> None:
    rng = np.random.default_rng(seed)
    rows, points = rng.normal(size=(5000, d)).astype(precision), rng.normal(size=(7, d))
    apart = cdist(rows, points)
    found = apart[np.arange(5000), nearest(rows, points)]
    np.testing.assert_allclose(found, apart.min(axis=1), atol=1e-2 if precision == "f4" else 1e-6)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    cosines = rows @ points.T
    found = cosines[np.arange(5000), nearest(rows, points, angle=True)]
    np.testing.assert_allclose(found, cosines.max(axis=1), atol=1e-5)


def test_sketches_of_updates_that_are_not_finite_are_not() -> None:
    rows = np.ones((3, 50), dtype=np.float32)
    rows[0, 7], rows[1, 7] = np.nan, np.inf
    rows[2] = 3e38
    assert not np.isfinite(sketched(rows, 4)).all(axis=1)[:2].any()
