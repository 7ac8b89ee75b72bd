"""The draws that selectors share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_views import assert_frequencies, inclusion

from flsel.rng import generator
from flsel.selectors._sampling import equal_weights, largest, log_shares, shares, successive, without

WEIGHTS = [0.5, 0.25, 0.15, 0.1]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_successive_sampling_has_plackett_luce_inclusions(count):
    def draw(seed):
        return successive(np.log(WEIGHTS), count, generator(seed, "test"))

    assert_frequencies(draw, inclusion(WEIGHTS, count))


def test_successive_sampling_keeps_the_order_of_drawing():
    def first(seed):
        return successive(np.log(WEIGHTS), 3, generator(seed, "test"))[:1]

    assert_frequencies(first, WEIGHTS)


@given(st.lists(st.sampled_from([0.0, 1e-300, 0.5, 1e300]), min_size=1, max_size=20), st.integers(0, 25))
def test_successive_sampling_is_distinct_and_never_draws_weight_zero(weights, count):
    with np.errstate(divide="ignore"):
        drawn = successive(np.log(weights), count, generator(1, "test"))
    positive = np.flatnonzero(weights)
    assert len(set(drawn)) == len(drawn) == min(count, len(positive))
    assert set(drawn) <= set(positive)


def test_largest_breaks_ties_at_random():
    values = np.array([1.0, 3.0, 1.0, 1.0, np.nan])
    assert_frequencies(lambda seed: largest(values, 3, generator(seed, "test")), [2 / 3, 1, 2 / 3, 2 / 3, 0])


@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=30), st.integers(0, 30))
def test_largest_is_largest_first_and_nan_last(values, count):
    values = np.array(values)
    taken = values[largest(values, count, generator(0, "test"))]
    expected = np.sort(np.where(np.isnan(values), -np.inf, values))[::-1][:count]
    np.testing.assert_array_equal(np.where(np.isnan(taken), -np.inf, taken), expected)


def test_shares_are_those_of_the_pool():
    np.testing.assert_allclose(shares(np.array([10, 30, 0])), [0.25, 0.75, 0.0])
    np.testing.assert_array_equal(log_shares(np.array([0, 5])), [-np.inf, 0.0])
    np.testing.assert_allclose(shares(np.array([0, 0])), [0.5, 0.5])


def test_equal_weights_count_draws():
    np.testing.assert_allclose(equal_weights(4), [0.25] * 4)


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_those_that_are_left_keep_their_order(clients, some):
    clients, some = np.array(sorted(clients), dtype=np.int64), np.array(list(some), dtype=np.int64)
    assert without(clients, some).tolist() == np.setdiff1d(clients, some).tolist()
