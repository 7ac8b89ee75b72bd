from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from flsel.data.heterogeneity import Spread, cohort_entropy, label_entropy, summarise


@given(seed=st.integers(0, 999), clients=st.integers(1, 8), labels=st.integers(1, 12))
def test_entropy_is_that_of_scipy_in_nats(seed: int, clients: int, labels: int) -> None:
    counts = np.random.default_rng(seed).integers(0, 4, (clients, labels))
    counts[:, 0] += 1
    entropies = label_entropy(counts)
    np.testing.assert_allclose(entropies, entropy(counts, axis=1), atol=1e-12)
    assert ((entropies >= 0) & (entropies <= np.log(labels) + 1e-12)).all()


def test_entropy_of_one_label_all_labels_and_none() -> None:
    counts = np.array([[5, 0, 0, 0], [3, 3, 3, 3], [0, 0, 0, 0]])
    np.testing.assert_allclose(label_entropy(counts), [0.0, np.log(4), 0.0])
    assert not np.signbit(label_entropy(counts)).any()


def test_a_cohort_pools_its_samples() -> None:
    counts = np.array([[10, 0], [0, 10], [0, 30]])
    assert cohort_entropy(counts, [0, 1]) == pytest.approx(np.log(2))
    assert cohort_entropy(counts, [1, 2]) == 0.0
    assert cohort_entropy(counts, [0, 2]) == pytest.approx(entropy([1, 3]))
    assert cohort_entropy(counts, [0, 0, 1]) == pytest.approx(entropy([2, 1]))


def test_summary() -> None:
    summary = summarise([np.array([[4, 0, 0], [1, 1, 0]]), np.array([[0, 0, 0], [2, 2, 2]])])
    assert (summary.clients, summary.examples) == (4, 12)
    assert summary.size == Spread(0, 3, 6)
    assert summary.labels == Spread(0, 1.5, 3)
    assert summary.entropy == pytest.approx(Spread(0, np.log(2), np.log(3)))
