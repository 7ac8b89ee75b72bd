"""Inclusion probabilities: sums, all candidates for the optimum, and the limit of the approximation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flsel.rng import generator
from flsel.selectors._inclusion import approximate_inclusion, optimal_inclusion

LENGTHS = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=12).map(np.array)


@given(LENGTHS, st.floats(0.1, 12.0))
def test_probabilities_sum_to_the_mean(lengths, mean):
    probability = optimal_inclusion(lengths, mean)
    assert ((probability >= 0) & (probability <= 1)).all()
    able = np.count_nonzero(lengths)
    expected = len(lengths) if mean >= len(lengths) else min(mean, able) if able else mean
    assert probability.sum() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mean", [1.0, 2.5, 4.0])
def test_no_other_probabilities_have_less_variance(seed, mean):
    lengths = generator(seed, "test").lognormal(sigma=1.5, size=6)
    probability = optimal_inclusion(lengths, mean)

    best: tuple[float, np.ndarray] | None = None
    for always in itertools.product([False, True], repeat=6):
        # Whoever is not always in must have a chance in proportion to the length, or a shift would pay.
        p = np.ones(6)
        rest = ~np.array(always)
        p[rest] = (mean - sum(always)) * lengths[rest] / max(lengths[rest].sum(), 1e-300)
        if p.min() > 0 and p.max() <= 1 + 1e-12 and abs(p.sum() - mean) < 1e-9:
            variance = float((lengths**2 / p).sum())
            best = (variance, p) if best is None or variance < best[0] else best
    assert best is not None
    np.testing.assert_allclose(probability, best[1], rtol=1e-9)
    for shift in generator(seed, "shift").normal(size=(200, 6)) * 0.01:
        other = probability + shift - shift.mean()
        if other.min() > 0 and other.max() <= 1:
            assert (lengths**2 / other).sum() >= best[0]


def test_equal_lengths_have_equal_chances():
    np.testing.assert_allclose(optimal_inclusion(np.full(7, 3.0), 2.0), 2 / 7)
    np.testing.assert_allclose(approximate_inclusion(np.full(7, 3.0), 2.0, 4)[0], 2 / 7)


def test_by_hand():
    # 10 is always in; 3 and 1 share the rest of the mean, 1, as 3 to 1.
    np.testing.assert_allclose(optimal_inclusion(np.array([1.0, 10.0, 3.0]), 2.0), [0.25, 1.0, 0.75])
    # 2 (1, 10, 3) / 14 = (1/7, 1, 3/7); then C = (2 - 3 + 2) / (4/7) = 7/4.
    probability, made = approximate_inclusion(np.array([1.0, 10.0, 3.0]), 2.0, 1)
    np.testing.assert_allclose(probability, [0.25, 1.0, 0.75])
    assert made == 1


def test_rounding_costs_no_rescaling():
    counts = set()
    for seed in range(200):
        rng = generator(seed, "test")
        lengths = rng.lognormal(sigma=1.0, size=10)
        almost = lengths * (1 + 1e-7 * rng.standard_normal(10))
        made = approximate_inclusion(lengths, 4.0, 9)[1]
        assert approximate_inclusion(almost, 4.0, 9)[1] == made
        counts.add(made)
    assert {1, 2, 3} <= counts


@pytest.mark.parametrize("lengths", [[0.0, 0.0, 0.0], [5.0, 0.0, 0.0], [5.0, 1.0, 0.0]])
def test_nothing_to_send_is_not_sent(lengths):
    expected = [2 / 3] * 3 if not any(lengths) else [float(length > 0) for length in lengths]
    np.testing.assert_allclose(optimal_inclusion(np.array(lengths), 2.0), expected)
    np.testing.assert_allclose(approximate_inclusion(np.array(lengths), 2.0, 9)[0], expected)


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=12).map(np.array), st.floats(0.5, 11.0))
def test_with_enough_rescalings_the_approximation_is_the_optimum(lengths, mean):
    assume(mean < len(lengths))
    probability, _ = approximate_inclusion(lengths, mean, len(lengths) + 1)
    np.testing.assert_allclose(probability, optimal_inclusion(lengths, mean), rtol=1e-6)
    for few in range(1, 5):
        assert approximate_inclusion(lengths, mean, few)[0].sum() <= mean * (1 + 1e-9)
