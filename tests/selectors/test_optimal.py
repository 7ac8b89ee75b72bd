"""Optimal Aggregation: reference vectors, and the norm identity against the definition."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flsel.rng import generator
from flsel.selectors._optimal import optimal_aggregation

CASES = json.loads((Path(__file__).parents[1] / "golden" / "fedpns_optimal_aggregation.json").read_text())[
    "cases"
]
PAPER = {"ge_9": 8, "ge_8": 7, "ge_7": 6, "ge_2": 1}  # `while |S| >= v` lets v - 1 survive.


def stack(gradients):
    """Two tensors of different shapes, so that rows have to be put together."""
    rows = torch.tensor(np.asarray(gradients), dtype=torch.float64)
    cut = rows.shape[1] // 2
    return {"a": rows[:, :cut, None], "b": rows[:, cut:]}


def judge(gradients, least, *, expectation="sum", loss=lambda rows: -float(len(rows)), scale=None):
    scale = np.ones(len(gradients)) if scale is None else scale
    return optimal_aggregation(stack(gradients), scale, least=least, expectation=expectation, loss=loss)


def passes(rows):
    return 1.0


def fails(rows):
    return -float(len(rows))


def compare(case, key, least, expectation):
    clients = [int(k) for k in case["grads"]]
    loss = passes if key.endswith("pass") else fails
    verdict = judge(list(case["grads"].values()), least, expectation=expectation, loss=loss)
    assert [clients[row] for row in verdict.labelled] == case[key]["labelled_in_order"]
    assert sorted(clients[row] for row in verdict.survivors) == case[key]["survivors"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_paper(case):
    for size, least in PAPER.items():
        for outcome in ("pass", "fail"):
            compare(case, f"paper_loopwhile_size_{size}_loss_{outcome}", least, "mean")


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case["name"])
def test_reference_code(case):
    for outcome in ("pass", "fail"):
        compare(case, f"reference_Fed_py_min8_loss_{outcome}", 8, "sum")
        compare(case, f"reference_Fed_correct_py_min7_loss_{outcome}", 7, "sum")


def test_small_gradients_are_labelled_like_large_ones():
    # The reference rounds them to zero; the rule itself has no scale.
    large, _, small = CASES
    for expectation in ("sum", "mean"):
        both = [
            judge(list(case["grads"].values()), 1, expectation=expectation, loss=passes)
            for case in (large, small)
        ]
        assert both[0].labelled == both[1].labelled


def value(gradients, rows, expectation):
    """The definition: inner products of the mean gradient with each."""
    mean = gradients[rows].mean(0)
    return getattr(np, expectation)(gradients[rows] @ mean)


@given(st.integers(0, 10_000), st.integers(2, 8), st.sampled_from(["sum", "mean"]))
def test_each_step_follows_the_definition(seed, count, expectation):
    rng = generator(seed, "test")
    gradients, scale = rng.normal(size=(count, 6)) + rng.normal(size=6), rng.random(count) + 0.1
    table = rng.random(count + 1)
    verdict = judge(gradients, 1, expectation=expectation, loss=lambda rows: table[len(rows)], scale=scale)
    scaled, rows, expected = gradients * scale[:, None], list(range(count)), []
    whole = value(scaled, rows, expectation)
    assert value(scaled, rows, "mean") == pytest.approx((scaled.mean(0) ** 2).sum())
    while len(rows) > 1:
        values = [value(scaled, [j for j in rows if j != k], expectation) for k in rows]
        if max(values) <= whole:
            break
        worst = rows[int(np.argmax(values))]
        expected.append(worst)
        if table[len(rows) - 1] > table[len(rows)]:
            break
        rows.remove(worst)
        whole = max(values)
    assert verdict.labelled == expected
    assert verdict.survivors.tolist() == rows


@given(st.integers(0, 10_000), st.floats(1e-6, 1e6))
def test_numbering_and_scale_do_not_matter(seed, factor):
    rng = generator(seed, "test")
    gradients, order = rng.normal(size=(7, 5)), rng.permutation(7)
    plain = judge(gradients, 3, loss=passes)
    moved = judge(factor * gradients[order], 3, loss=passes)
    assert [order[row] for row in moved.labelled] == plain.labelled
    assert sorted(order[moved.survivors]) == plain.survivors.tolist()


@given(st.integers(0, 10_000), st.integers(2, 8))
def test_the_mean_rule_always_labels_somebody(seed, count):
    gradients = generator(seed, "test").normal(size=(count, 5))
    assert judge(gradients, 1, expectation="mean", loss=fails).labelled


@pytest.mark.parametrize("expectation", ["sum", "mean"])
@pytest.mark.parametrize("gradient", [[0.0, 0.0], [0.1, 0.7]])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_equal_gradients_are_never_labelled(expectation, gradient, count):
    verdict = judge([gradient] * count, 1, expectation=expectation, loss=passes)
    assert verdict.labelled == []
    assert verdict.survivors.tolist() == list(range(count))


def test_the_first_among_equals_is_labelled():
    gradients = [[1.0, 0.0], [-4.0, 0.0], [1.0, 0.0], [-4.0, 0.0], [9.0, 0.0]]
    assert judge(gradients, 4, loss=passes).labelled == [1]


def test_losses_are_asked_once_per_cohort():
    asked = []

    def loss(rows):
        asked.append(rows.tolist())
        return 1.0

    gradients = list(CASES[0]["grads"].values())
    assert judge(gradients, 8, loss=loss).labelled == [7, 5]
    assert asked == [list(range(10)), [0, 1, 2, 3, 4, 5, 6, 8, 9], [0, 1, 2, 3, 4, 6, 8, 9]]


@pytest.mark.parametrize("losses", [(math.nan, 1.0), (1.0, math.nan), (1.0, 1.0 + 1e-15)])
def test_an_update_stays_unless_the_loss_provably_does_not_rise(losses):
    answers = iter(losses)
    verdict = judge(list(CASES[0]["grads"].values()), 8, loss=lambda rows: next(answers))
    assert verdict.labelled == [7]
    assert len(verdict.survivors) == 10


@pytest.mark.parametrize("expectation", ["sum", "mean"])
def test_updates_whose_sums_of_squares_are_no_numbers(expectation):
    rows = np.random.default_rng(0).normal(size=(6, 4))
    verdicts = [
        optimal_aggregation(
            {"w": torch.from_numpy(rows * size)},
            np.ones(6),
            least=3,
            expectation=expectation,
            loss=lambda rows: 1.0,
        )
        for size in (1.0, 3e153)
    ]
    assert verdicts[0].labelled == verdicts[1].labelled != []
    assert verdicts[0].survivors.tolist() == verdicts[1].survivors.tolist()
