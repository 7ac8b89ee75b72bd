"""Aggregates against formulas, and Krum by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flsel.updates import Krum, Mean, Median, MultiKrum, TrimmedMean

ROWS = [[1.0, 5], [2, -4], [3, 0], [100, 1], [-50, 2]]
EVEN = torch.full((5,), 0.2, dtype=torch.float64)


def stack(rows):
    return {"w": torch.tensor(rows)}


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (Mean(), [11.2, 0.8]),
        (Median(), [2, 1]),
        (TrimmedMean(share=0.2), [2, 1]),
        (TrimmedMean(share=0.0), [11.2, 0.8]),
        (TrimmedMean(share=0.4), [2, 1]),
    ],
)
def test_formulas(aggregate, expected):
    torch.testing.assert_close(aggregate.combined(stack(ROWS), EVEN)["w"], torch.tensor(expected).float())


def test_median_of_an_even_number_is_the_mean_of_the_middle_two():
    found = Median().combined(stack(ROWS[:4]), torch.full((4,), 0.25, dtype=torch.float64))["w"]
    assert found.tolist() == [2.5, 0.5]


def test_updates_without_weight_are_left_out_and_the_sum_of_weights_scales():
    weights = torch.tensor([0.1, 0.2, 0.2, 0.0, 0.0], dtype=torch.float64)
    assert Median().combined(stack(ROWS), weights)["w"].tolist() == [1.0, 0.0]
    assert Median().combined(stack(ROWS), torch.zeros(5, dtype=torch.float64))["w"].tolist() == [0.0, 0.0]


def brute_force(rows: np.ndarray, corrupt: int) -> list[float]:
    """Krum's scores as the paper defines them: minimise over all sets of neighbours."""
    scores = []
    for i in range(len(rows)):
        others = [j for j in range(len(rows)) if j != i]
        near = itertools.combinations(others, max(len(rows) - corrupt - 2, 1))
        scores.append(min(sum(((rows[i] - rows[j]) ** 2).sum() for j in chosen) for chosen in near))
    return scores


@given(
    st.integers(0, 2).flatmap(
        lambda f: st.tuples(
            st.just(f),
            st.lists(st.lists(st.integers(-30, 30), min_size=3, max_size=3), min_size=2 * f + 3, max_size=8),
        )
    )
)
def test_krum_by_brute_force(case):
    corrupt, rows = case
    table = np.array(rows, dtype=np.float64)
    scores = brute_force(table, corrupt)
    found = Krum(corrupt).join({"w": torch.from_numpy(table)})["w"].numpy()
    assert np.array_equal(found, table[int(np.argmin(scores))])
    best = np.argsort(scores, kind="stable")[: len(rows) - corrupt]
    several = MultiKrum(corrupt).join({"w": torch.from_numpy(table)})["w"].numpy()
    np.testing.assert_allclose(several, table[best].mean(axis=0), atol=1e-12)


def test_krum_takes_no_update_far_away():
    rows = [[0.0, 0], [0.1, 0], [0, 0.1], [0.1, 0.1], [9, 9]]
    assert Krum(corrupt=1).join(stack(rows))["w"].max() <= 0.1
    torch.testing.assert_close(MultiKrum(corrupt=1).join(stack(rows))["w"], torch.tensor([0.05, 0.05]))
    assert MultiKrum(corrupt=1, keep=2).join(stack(rows))["w"].max() <= 0.1
    assert (Krum(corrupt=2).least, MultiKrum(corrupt=0).least, Median().least) == (7, 3, 1)


@pytest.mark.parametrize("corrupt", [0, 1, 5])
@pytest.mark.parametrize("rows", [ROWS[:1], ROWS[:2], ROWS[:3]])
def test_rounds_that_bring_few_updates(rows, corrupt):
    """Late clients leave fewer updates than an aggregate asks for: every one falls back as it says."""
    table, few = np.array(rows, dtype=np.float64), {"w": torch.tensor(rows, dtype=torch.float64)}
    even = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
    scores = brute_force(table, corrupt) if len(rows) > 1 else [0.0]
    order = np.argsort(scores, kind="stable")
    kept = table[order[: max(len(rows) - corrupt, 1)]].mean(axis=0)
    cut = int(0.4 * len(rows))
    trimmed = np.sort(table, axis=0)[cut : len(rows) - cut].mean(axis=0)
    for aggregate, expected in (
        (Krum(corrupt), table[order[0]]),
        (MultiKrum(corrupt), kept),
        (MultiKrum(corrupt, keep=9), table.mean(axis=0)),
        (Median(), np.median(table, axis=0)),
        (TrimmedMean(share=0.4), trimmed),
    ):
        np.testing.assert_allclose(aggregate.combined(few, even)["w"].numpy(), expected)
