"""The secure scalar product: the paper's numbers, exactness, and messages that show nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from flsel.metrics import Cost
from flsel.selectors._sspp import deal, finish, hidden, reply, secure_products, traffic

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/fedgs_sspp.json").read_text())


def test_messages_match_algorithm_2() -> None:
    a, b, r_a, r_b = (np.array(GOLDEN[key]) for key in ("A", "B", "R_a", "R_b"))
    share_a, share_b = deal(r_a, r_b, np.array(GOLDEN["r_a"]))
    assert share_b.scalar == pytest.approx(GOLDEN["r_b"], abs=1e-9)
    a_hat, b_hat = hidden(a, share_a), hidden(b, share_b)
    np.testing.assert_allclose(a_hat, GOLDEN["A_hat"], atol=1e-9)
    np.testing.assert_allclose(b_hat, GOLDEN["B_hat"], atol=1e-9)
    u = reply(b, share_b, a_hat, np.array(GOLDEN["v2"]))
    assert u == pytest.approx(GOLDEN["u"], abs=1e-9)
    v1 = finish(u, share_a, b_hat)
    assert v1 == pytest.approx(GOLDEN["v1"], abs=1e-9)
    assert v1 + GOLDEN["v2"] == pytest.approx(GOLDEN["A_dot_B"], abs=1e-9)
    # Why the masks come from a party of their own: with R_a the server would know A.
    assert GOLDEN["server_can_recover_A"]
    np.testing.assert_allclose(np.array(GOLDEN["A_hat"]) - GOLDEN["R_a"], GOLDEN["A"], atol=1e-12)


@given(seed=st.integers(0, 2**32), clients=st.integers(0, 6), length=st.integers(1, 12))
def test_products_are_right(seed: int, clients: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(clients, length))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1.0)
    found = secure_products(vectors, rng)
    assert np.isnan(np.diag(found)).all()
    off = ~np.eye(clients, dtype=bool)
    np.testing.assert_allclose(found[off], (vectors @ vectors.T)[off], atol=2e-9 * length, rtol=0)
    np.testing.assert_array_equal(found[off], found.T[off])


def test_the_largest_products_fit_the_ring() -> None:
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.5, 0.5]])
    found = secure_products(vectors, np.random.default_rng(0))
    assert found[0, 1] == 1.0
    assert found[0, 2] == -1.0
    assert found[0, 3] == 0.5


def ring(rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 2**64, shape, dtype=np.uint64)


@pytest.mark.parametrize("value", [0, 1, 2**30, 2**63])
def test_what_the_server_sees_is_uniform_whatever_the_vectors_are(value: int) -> None:
    rng, pairs = np.random.default_rng(value % 97), 16_000
    a, b = np.full((pairs, 2), value, dtype=np.uint64), np.full((pairs, 2), value // 2 + 1, dtype=np.uint64)
    share_a, share_b = deal(ring(rng, (pairs, 2)), ring(rng, (pairs, 2)), ring(rng, pairs))
    secret = ring(rng, pairs)
    a_hat, b_hat = hidden(a, share_a), hidden(b, share_b)
    u = reply(b, share_b, a_hat, secret)
    v1 = finish(u, share_a, b_hat)
    np.testing.assert_array_equal(v1 + secret, (a * b).sum(axis=1))
    # The server's messages, one by one and in sums and differences that would show a dependence.
    seen = [*a_hat.T, *b_hat.T, u, secret, u + secret, a_hat[:, 0] - b_hat[:, 0], u - a_hat[:, 0]]
    for message in seen:
        bins = np.bincount((message >> np.uint64(60)).astype(np.int64), minlength=16)
        assert chisquare(bins).pvalue > 1e-5
        odd = np.bincount((message & np.uint64(15)).astype(np.int64), minlength=16)
        assert chisquare(odd).pvalue > 1e-5


def test_traffic_is_that_of_algorithm_2() -> None:
    cost = traffic(100, 10)
    assert cost.bytes_up + cost.bytes_down == 8 * 4950 * (6 * 10 + 6)
    assert cost.scalars_up * 8 == cost.bytes_up
    assert traffic(1, 10) == Cost()
