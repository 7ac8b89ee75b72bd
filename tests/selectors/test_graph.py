"""FedGS's graph: reference vectors, the edge cases of similarities and paths, invariances."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flsel.selectors._graph import (
    EPSILON,
    SIGMA2,
    adjacency,
    cosines,
    graph_distances,
    shortest_paths,
    similarity,
    stretched,
)

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "fedgs_graph.json").read_text())["cases"]
CLOSE = {"atol": 1e-9, "rtol": 0}


def matrix(rows: Any) -> np.ndarray:
    return np.array([[float(value) for value in row] for row in rows])


def off_diagonal(values: np.ndarray) -> np.ndarray:
    return values[~np.eye(len(values), dtype=bool)]


def products(rows: Any) -> np.ndarray:
    features = np.array(rows, dtype=float)
    return features @ features.T


def built(v: np.ndarray, *, epsilon: float = 0.1, sigma2: float = 0.01, gap: float = 1.0) -> np.ndarray:
    r = adjacency(v, epsilon=epsilon, sigma2=sigma2, variant="normalised")
    return graph_distances(shortest_paths(r), gap=gap, variant="normalised")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize(
    ("key", "epsilon", "sigma"),
    [("reference_default", 0.01, 0.1), ("reference_with_eps0.1_sigma0.01", 0.1, 0.01)],
)
def test_the_reference_graph(case: Any, key: str, epsilon: float, sigma: float) -> None:
    golden = case[key]
    v = similarity(products(case["features"]), clip=False, variant="reference")
    expected = matrix(golden.get("V", golden.get("V_offdiag_diag_is_inf")))
    np.testing.assert_allclose(off_diagonal(v), off_diagonal(expected), **CLOSE)
    r = adjacency(v, epsilon=epsilon, sigma2=sigma, variant="reference")
    np.testing.assert_allclose(r, matrix(golden["R"]), **CLOSE)
    h = graph_distances(shortest_paths(r), gap=1.0, variant="reference")
    np.testing.assert_allclose(h, matrix(golden["H"]), **CLOSE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize(
    ("key", "clip"),
    [
        ("paper_dot_minmax_over_full_matrix", False),
        ("paper_dot_minmax_over_offdiag", False),
        ("paper_cos_clipped_no_minmax", True),
    ],
)
@pytest.mark.parametrize("variant", ["paper", "normalised"])
def test_the_paper_graph(case: Any, key: str, clip: bool, variant: Any) -> None:
    given = products(case["features"])
    if "offdiag" in key:  # As after the secure product: nobody knows the diagonal.
        np.fill_diagonal(given, np.nan)
    v = similarity(given, clip=clip, variant=variant)
    np.testing.assert_allclose(off_diagonal(v), off_diagonal(matrix(case[key]["V"])), **CLOSE)
    r = adjacency(v, epsilon=0.1, sigma2=0.01, variant=variant)
    np.testing.assert_allclose(r, matrix(case[key]["R"]), atol=0, rtol=1e-11)
    paths = shortest_paths(r)
    # The paths are as short as 1e-44: an absolute tolerance would not tell them from each other.
    expected = matrix(case[key]["D_unnormalised"])
    np.testing.assert_allclose(paths, expected, atol=0, rtol=1e-11)
    reached = np.isfinite(expected)
    longest = expected[reached].max()
    unit = 1.0 if variant == "paper" else longest
    h = graph_distances(paths, gap=2.0, variant=variant)
    np.testing.assert_allclose(h[reached], expected[reached] / unit, atol=0, rtol=1e-11)
    np.testing.assert_allclose(h[~reached], 2.0 * longest / unit, rtol=1e-11)


def test_similarities_of_models_match_the_reference() -> None:
    golden = json.loads((GOLDEN / "fedgs_similarity.json").read_text())
    noise = np.array(golden["noise_batch"])
    outputs = np.array(
        [
            (noise @ np.array(w).T + np.array(b)).mean(axis=0)
            for w, b in zip(golden["linear_models_W"], golden["linear_models_b"], strict=True)
        ]
    )
    np.testing.assert_allclose(outputs, golden["mean_outputs"], **CLOSE)
    for features, key in ((outputs, "V_functional"), (golden["updates_flat"], "V_cosine_of_updates")):
        v = similarity(products(features), clip=True, variant="normalised")
        np.testing.assert_allclose(v, golden[key], **CLOSE)
    v = similarity(products(outputs), clip=True, variant="reference")
    expected = matrix(golden["V_functional_fedgs_minmax"])
    np.testing.assert_allclose(off_diagonal(v), off_diagonal(expected), **CLOSE)


@pytest.mark.parametrize("length", [1e-7, 1e-9, 1e-44, 5e-324, 0.0])
def test_the_shortest_edges_are_edges(length: float) -> None:
    r = np.array([[0.0, length, np.inf], [length, 0.0, 1.0], [np.inf, 1.0, 0.0]])
    paths = shortest_paths(r)
    np.testing.assert_allclose(paths[0], [0.0, length, 1.0 + length], atol=1e-300)
    np.testing.assert_array_equal(np.diag(paths), 0.0)


def test_a_path_through_similar_clients_is_shorter_than_an_edge() -> None:
    v = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.9], [0.1, 0.9, 1.0]])
    r = adjacency(v, epsilon=0.1, sigma2=0.1, variant="paper")
    assert r[0, 2] == pytest.approx(math.exp(-1))
    assert shortest_paths(r)[0, 2] == pytest.approx(2 * math.exp(-9))


def test_the_threshold_belongs_to_the_paper_graph_only() -> None:
    v = np.array([[1.0, 0.1], [0.1, 1.0]])
    assert np.isfinite(adjacency(v, epsilon=0.1, sigma2=0.01, variant="paper")[0, 1])
    assert np.isinf(adjacency(v, epsilon=0.1, sigma2=0.01, variant="reference")[0, 1])


def test_cliques_of_identical_clients_say_nothing_at_a_gap_of_one() -> None:
    v = np.kron(np.eye(3), np.ones((2, 2)))
    near = built(v)
    np.testing.assert_array_equal(off_diagonal(near), 1.0)
    far = built(v, gap=2.0)
    assert far[0, 1] == 1.0
    assert far[0, 2] == 2.0


def test_an_isolated_client_is_as_far_as_the_gap_says() -> None:
    v = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_array_equal(built(v, gap=3.0)[2], [3.0, 3.0, 0.0])


@pytest.mark.parametrize("variant", ["normalised", "paper", "reference"])
def test_without_any_edge_all_are_equally_far(variant: Any) -> None:
    r = adjacency(np.eye(4), epsilon=0.1, sigma2=0.01, variant=variant)
    h = graph_distances(shortest_paths(r), gap=2.0, variant=variant)
    np.testing.assert_array_equal(h, 1.0 - np.eye(4))


def test_one_client_has_a_graph() -> None:
    np.testing.assert_array_equal(built(np.ones((1, 1))), [[0.0]])


def test_equal_similarities_stretch_to_zero() -> None:
    np.testing.assert_array_equal(stretched(np.full((3, 3), 0.4)), np.zeros((3, 3)))
    alike = similarity(np.full((3, 3), 0.4), clip=False, variant="normalised")
    np.testing.assert_array_equal(built(alike), 1.0 - np.eye(3))


def test_a_zero_vector_is_similar_to_nobody() -> None:
    given = products([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(cosines(given)[0], 0.0)
    assert similarity(given, clip=True, variant="normalised")[1, 2] == 1.0


def test_an_unknown_client_has_no_edge() -> None:
    given = products([[1.0, 0.0], [0.9, 0.1], [np.nan, np.nan]])
    for clip in (False, True):
        v = similarity(given, clip=clip, variant="normalised")
        assert np.isnan(v[2]).all()
        h = built(v, gap=2.0)
        assert np.isfinite(h).all()
        np.testing.assert_array_equal(h[2], [2.0, 2.0, 0.0])
    np.testing.assert_array_equal(built(np.full((3, 3), np.nan)), 1.0 - np.eye(3))


@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 9),
    variant=st.sampled_from(["normalised", "paper", "reference"]),
    clip=st.booleans(),
    gap=st.floats(1.0, 3.0),
)
def test_distances_are_finite_symmetric_and_follow_a_permutation(
    seed: int, clients: int, variant: Any, clip: bool, gap: float
) -> None:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(clients, 3)) * (rng.random((clients, 1)) < 0.8)
    features[rng.random(clients) < 0.2] = np.nan
    order = rng.permutation(clients)

    def graph(rows: np.ndarray) -> np.ndarray:
        v = similarity(products(rows), clip=clip, variant=variant)
        r = adjacency(v, epsilon=0.1, sigma2=0.1, variant=variant)
        return graph_distances(shortest_paths(r), gap=gap, variant=variant)

    h = graph(features)
    assert np.isfinite(h).all()
    assert (h >= 0).all()
    np.testing.assert_array_equal(h, h.T)
    np.testing.assert_array_equal(np.diag(h), 0.0)
    np.testing.assert_allclose(graph(features[order]), h[np.ix_(order, order)], atol=1e-9)
    if variant != "paper" and clients > 1:
        assert h.max() in (pytest.approx(1.0), pytest.approx(gap))


@pytest.mark.parametrize("clip", [False, True])
def test_scaled_similarities_span_the_pairs_of_different_clients(clip: bool) -> None:
    rng = np.random.default_rng(5)
    # Models that are almost equal, as after one local training: cosines between 0.99 and 1.
    features = 1.0 + 0.05 * rng.normal(size=(9, 30))
    products = features @ features.T
    plain = similarity(products, clip=clip, variant="normalised")
    scaled = similarity(products, clip=clip, variant="scaled")
    pairs = np.triu_indices(9, k=1)
    assert scaled[pairs].min() == 0
    assert scaled[pairs].max() == 1
    np.testing.assert_allclose(np.argsort(scaled[pairs]), np.argsort(plain[pairs]))
    r = adjacency(scaled, epsilon=EPSILON["scaled"], sigma2=SIGMA2["scaled"], variant="scaled")
    h = graph_distances(shortest_paths(r), gap=1.0, variant="scaled")
    assert h[pairs].max() == pytest.approx(1.0)
    assert np.exp(-1) - 1e-12 <= h[pairs].min() < 0.5
    # Scaling all updates, or adding the same to all similarities, changes nothing.
    again = similarity(4.0 * products + (0.0 if clip else 7.0), clip=clip, variant="scaled")
    np.testing.assert_allclose(again, scaled, atol=1e-9)


def test_unknown_clients_stay_unknown_in_scaled_similarities() -> None:
    products = np.array([[1.0, 0.2, np.nan], [0.2, 1.0, np.nan], [np.nan, np.nan, np.nan]])
    scaled = similarity(products, clip=False, variant="scaled")
    assert np.isnan(scaled[0, 2])
    assert scaled[0, 1] == 0
    r = adjacency(scaled, epsilon=0.0, sigma2=1.0, variant="scaled")
    assert np.isinf(r[0, 2])
    assert graph_distances(shortest_paths(r), gap=1.0, variant="scaled").max() == 1.0
