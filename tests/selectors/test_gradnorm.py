"""GradientNorm: the macro set, the largest norms, ties and odd updates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_views import assert_frequencies, chosen, view

from flsel.errors import UserError
from flsel.local.schedule import Reach
from flsel.rng import generator
from flsel.selector import Need, Plan, Updates
from flsel.selectors.gradnorm import GradientNorm


def returned(rows, clients=None, steps=None):
    rows = torch.as_tensor(np.asarray(rows, dtype=np.float64))
    return Updates(
        plan=Plan.star(range(len(rows)) if clients is None else clients),
        sizes=torch.full((len(rows),), 5),
        steps=torch.tensor(steps or [1] * len(rows)),
        needs=Need.DELTAS,
        answers={"deltas": {"a": rows[:, :1, None], "b": rows[:, 1:]}},
    )


def weigh(selector, back, clients_per_round=None):
    return selector.weigh(view([5] * 50, clients_per_round or len(back.plan)), back).tolist()


def test_the_macro_set_is_uniform():
    chance = [0.75, 0.75, 0.0, 0.75, 0.75]
    assert_frequencies(
        lambda seed: chosen(GradientNorm().select(view([1, 9, 0, 4, 2], 3, seed=seed))), chance
    )
    assert sorted(chosen(GradientNorm(2).select(view([1] * 5, 4, absent=[0, 2])))) == [1, 3, 4]


@given(st.integers(0, 10_000), st.integers(1, 10), st.integers(1, 10))
def test_the_largest_norms_weigh_equally(seed, count, keep):
    rows = generator(seed, "test").normal(size=(count, 4))
    weights = weigh(GradientNorm(keep), returned(rows), clients_per_round=10)
    largest = np.argsort(-np.linalg.norm(rows, axis=1))[:keep]
    expected = np.zeros(count)
    expected[largest] = 1 / min(keep, count)
    assert weights == pytest.approx(expected.tolist())


@pytest.mark.parametrize(("clients_per_round", "kept"), [(1, 1), (2, 1), (5, 3), (20, 10)])
def test_half_the_clients_per_round_is_kept(clients_per_round, kept):
    weights = weigh(GradientNorm(), returned(np.arange(2 * clients_per_round).reshape(clients_per_round, 2)))
    assert np.count_nonzero(weights) == kept
    assert sum(weights) == pytest.approx(1.0)


def test_fewer_updates_than_to_keep():
    assert weigh(GradientNorm(4), returned([[1.0, 0], [2.0, 0]]), clients_per_round=8) == [0.5, 0.5]


def test_ties_go_to_the_lowest_id():
    assert weigh(GradientNorm(2), returned([[1.0, 0]] * 4, clients=[30, 2, 17, 4])) == [0, 0.5, 0, 0.5]


def test_updates_are_compared_per_step_or_whole():
    back = returned([[3.0, 0], [4.0, 0], [2.0, 0]], steps=[1, 4, 0])
    assert weigh(GradientNorm(1), back) == [1, 0, 0]
    assert weigh(GradientNorm(1, per_step=False), back) == [0, 1, 0]


def test_the_same_gradient_scores_the_same_however_many_steps_with_momentum():
    param = torch.nn.Parameter(torch.zeros(2))
    reach = Reach(torch.optim.SGD([param], lr=0.1, momentum=0.9), {"w": param}, [1.0])
    counts = torch.tensor([38, 10, 1])
    moved = reach(0, counts)["w"]
    # Everybody's gradient is the same but the last one's, which is a little larger.
    rows = torch.stack([moved, moved], dim=1) * torch.tensor([[1.0], [1.0], [1.1]])
    back = replace(returned(rows, steps=counts.tolist()), travelled=lambda: reach.travel(counts))
    assert weigh(GradientNorm(1), back) == [0, 0, 1]
    assert weigh(GradientNorm(1), replace(back, travelled=None)) == [1, 0, 0]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_norms_that_are_not_finite_are_never_kept(poison):
    assert weigh(GradientNorm(2), returned([[poison, 0], [1.0, 0], [2.0, 0], [0, poison]])) == [
        0,
        0.5,
        0.5,
        0,
    ]
    assert weigh(GradientNorm(3), returned([[poison, 0], [1.0, 0], [2.0, 0]])) == [0, 0.5, 0.5]
    assert weigh(GradientNorm(1), returned([[poison, 0]] * 2)) == [0, 0]


def test_keep_out_of_range():
    with pytest.raises(UserError, match=r"keep must be at most clients_per_round \(3\), got 4"):
        GradientNorm(4).check_clients_per_round(3)
