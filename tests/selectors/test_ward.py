"""Angles, distances and cuts of Ward's tree against the reference and against direct formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import cdist, pdist

from flsel.errors import UserError
from flsel.rng import generator
from flsel.selectors import _pairwise
from flsel.selectors._pairwise import angles, squared_distances, unit
from flsel.selectors._ward import cut_by_mass, cut_into, ward

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
VECTORS = arrays(
    np.float64,
    st.tuples(st.integers(1, 8), st.just(3)),
    elements=st.floats(-10, 10).map(lambda x: round(x, 2)),
)


def golden(name):
    return json.loads((GOLDEN / name).read_text())


def sets(labels):
    return {frozenset(np.flatnonzero(labels == m).tolist()) for m in set(labels.tolist())}


def as_sets(partition):
    return {frozenset(group) for group in partition}


@given(st.integers(0, 2**32))
def test_equal_rows_in_great_number_change_nothing(seed):
    rng = generator(seed, "test")
    kinds = rng.normal(size=(3, 4))
    kinds[1] = kinds[0] * (1 + 1e-9)
    rows = kinds[rng.integers(0, 3, 60)]
    np.testing.assert_allclose(squared_distances(rows, rows), cdist(rows, rows) ** 2, rtol=1e-6)
    units = unit(rows)
    expected = 2 * np.arctan2(cdist(units, units), cdist(units, -units))
    np.testing.assert_allclose(angles(rows, rows), expected, atol=1e-12)
    one, other = rng.integers(0, 3, 2)
    assert (squared_distances(kinds[[one] * 9], kinds[[other] * 9]) == 0).all() == (one == other)


def test_angles_are_the_reference_ones():
    file = golden("02_hics_distance.json")
    bias = np.array(file["inputs"]["delta_b"])
    weight = np.array(file["inputs"]["delta_W"])
    np.testing.assert_allclose(angles(bias, bias), file["outputs"]["angle_bias_only"], atol=1e-9)
    both = np.hstack([weight.reshape(len(weight), -1), bias])
    np.testing.assert_allclose(angles(both, both), file["outputs"]["angle_weight_and_bias"], atol=1e-9)


@given(VECTORS)
def test_angles_are_symmetric_finite_and_zero_to_themselves(vectors):
    result = angles(vectors, vectors)
    assert np.isfinite(result).all()
    assert (result >= 0).all()
    assert (result <= np.pi + 1e-15).all()
    np.testing.assert_array_equal(np.diag(result), 0.0)
    np.testing.assert_allclose(result, result.T, atol=1e-14)
    units = unit(vectors)
    expected = 2 * np.arctan2(cdist(units, units), cdist(units, -units))
    np.testing.assert_allclose(result, expected, atol=1e-12)


@given(VECTORS, st.floats(1e-30, 1e30))
def test_angles_do_not_depend_on_lengths(vectors, factor):
    np.testing.assert_allclose(angles(vectors, vectors), angles(vectors, vectors * factor), atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_collinear_updates_have_angle_zero_or_pi(dtype):
    # Zero-sum updates of two classes; arccos of a rounded cosine is NaN or 2e-8 for many of them.
    x = generator(0, "test").normal(size=(200, 1)).astype(dtype)
    result = angles(np.hstack([x, -x]), np.hstack([x, -x]))
    np.testing.assert_allclose(result, np.where(x * x.T > 0, 0.0, math.pi), atol=1e-15)


def test_small_angles_keep_their_digits():
    turn = np.array([1e-12, 1e-9, 1e-6, 1e-3, 1.0])
    turned = np.column_stack([np.cos(turn), np.sin(turn)])
    np.testing.assert_allclose(angles(np.array([[7.0, 0.0]]), turned)[0], turn, rtol=1e-9)
    np.testing.assert_allclose(math.pi - angles(np.array([[-7.0, 0.0]]), turned)[0], turn, rtol=1e-3)


@pytest.mark.parametrize(("arguments", "expected"), [({}, math.pi / 2), ({"to_zero": 0.0}, 0.0)])
def test_angle_to_a_zero_update(arguments, expected):
    vectors = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    result = angles(vectors, vectors, **arguments)
    np.testing.assert_array_equal(result, expected * np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))


@given(VECTORS)
def test_squared_distances(vectors):
    result = squared_distances(vectors, vectors)
    np.testing.assert_array_equal(np.diag(result), 0.0)
    np.testing.assert_allclose(result, cdist(vectors, vectors, "sqeuclidean"), rtol=1e-8)


def test_wide_updates_are_multiplied_part_by_part(monkeypatch):
    vectors = generator(0, "test").normal(size=(5, 1000)).astype(np.float32)
    whole = angles(vectors, vectors), squared_distances(vectors, vectors)
    monkeypatch.setattr(_pairwise, "_BLOCK", 1)
    monkeypatch.setattr(_pairwise, "_PAIRS", 1)
    np.testing.assert_allclose(angles(vectors, vectors), whole[0], rtol=1e-12)
    np.testing.assert_allclose(squared_distances(vectors, vectors), whole[1], rtol=1e-12)


@pytest.mark.parametrize("case", ["outputs", "case_b_discriminating"])
def test_partitions_are_the_reference_ones(case):
    file = golden("03_hics_ward_clusters.json")
    block = file if case == "outputs" else file[case]
    matrix = np.array(block["inputs"]["D_code_lambda_10"])
    rows, condensed = ward(matrix), ward(matrix, "condensed")
    heights = np.array(block["outputs"]["scipy_Z_rows_as_points"])[:, 2]
    np.testing.assert_allclose(rows[:, 2], heights, atol=1e-9)
    variant = np.array(block["outputs"]["VARIANT_scipy_Z_condensed"])[:, 2]
    np.testing.assert_allclose(condensed[:, 2], variant, atol=1e-9)
    differ = 0
    for count, expected in block["outputs"]["by_M"].items():
        assert sets(cut_into(rows, int(count))) == as_sets(expected["partition"])
        assert sets(cut_into(condensed, int(count))) == as_sets(expected["VARIANT_condensed_partition"])
        differ += expected["partition"] != expected["VARIANT_condensed_partition"]
    assert differ >= (3 if case != "outputs" else 0)


def test_paper_and_code_weights_give_the_same_partition():
    file = golden("03_hics_ward_clusters.json")
    tree = ward(np.array(file["inputs"]["D_paper_lambda_0_1"]))
    for count, expected in file["outputs"]["by_M"].items():
        assert sets(cut_into(tree, int(count))) == as_sets(expected["partition_from_D_paper_lambda_0_1"])


def test_ward_on_rows_is_scipys_on_points():
    points = generator(0, "test").normal(size=(60, 4))
    matrix = cdist(points, points)
    np.testing.assert_allclose(ward(matrix), linkage(pdist(matrix), "ward"), atol=1e-9)


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 10**6))
def test_exactly_as_many_clusters_as_asked_even_for_equal_clients(clients, count, seed):
    spread = generator(seed, "test").integers(0, 2, (clients, 2)).astype(float)
    for matrix in (np.zeros((clients, clients)), cdist(spread, spread)):
        labels = cut_into(ward(matrix), count)
        assert set(labels.tolist()) == set(range(min(count, clients)))
        first = [np.flatnonzero(labels == m)[0] for m in range(labels.max() + 1)]
        assert first == sorted(first)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(9, 30), st.integers(0, 10**6))
def test_cut_by_mass_keeps_each_merge_that_fits(sizes, capacity, seed):
    points = generator(seed, "test").normal(size=(len(sizes), 2))
    tree, masses = ward(cdist(points, points)), np.array(sizes)
    labels = cut_by_mass(tree, masses, capacity)
    assert all(masses[labels == m].sum() <= capacity for m in set(labels.tolist()))
    members = [{k} for k in range(len(sizes))]
    for one, other in tree[:, :2].astype(int):
        members.append(members[one] | members[other])
        joined = len({labels[k] for k in members[-1]}) == 1
        assert joined == (masses[list(members[-1])].sum() <= capacity)


@pytest.mark.parametrize("largest", [1e150, 1e200, math.inf, math.nan])
@pytest.mark.parametrize("linkage", ["rows", "condensed"])
def test_distances_beyond_double_precision_are_refused(largest, linkage):
    distances = np.array([[0.0, largest, 1.0], [largest, 0.0, 2.0], [1.0, 2.0, 0.0]])
    with pytest.raises(
        UserError, match=r"distances of clients' updates must be below 3e.149 to be clustered"
    ):
        ward(distances, linkage)


@pytest.mark.parametrize("size", [1e-120, 1e100, 1e150])
def test_angles_of_very_long_and_very_short_vectors(size):
    vectors = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    expected = angles(vectors, vectors)
    np.testing.assert_allclose(angles(vectors * size, vectors * size), expected, atol=1e-12)
