"""Power-of-Choice: candidates, ranking, ties and reports that are no number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_views import Losses, assert_frequencies, chosen, inclusion, updates, view

from flsel.errors import UserError
from flsel.selector import Need
from flsel.selectors.powd import PowD

SIZES = [8, 4, 2, 5, 1]


def run_rounds(selector, losses, clients_per_round, *, sizes=SIZES, seed=0, absent=()):
    answers = Losses(losses)
    plan = selector.select(
        view(sizes, clients_per_round, seed=seed, absent=absent, needs=Need.LOSSES, answers=answers)
    )
    assert len(answers.asked) == 1
    return chosen(plan), answers.asked[0]


def test_candidates_come_by_data_share_without_replacement():
    chance = inclusion(np.array(SIZES) / 20, 3)
    assert_frequencies(lambda seed: run_rounds(PowD(3), [0.0] * 5, 2, seed=seed)[1], chance)


def test_the_largest_losses_among_the_candidates_win():
    losses = [0.3, 0.9, 0.1, 0.7, 0.5]
    for seed in range(50):
        taken, asked = run_rounds(PowD(3), losses, 2, seed=seed)
        assert len(asked) == len(set(asked)) == 3
        assert taken == sorted(asked, key=lambda k: -losses[k])[:2]


def test_d_equal_to_the_clients_per_round_is_sampling_without_replacement():
    chance = inclusion(np.array(SIZES) / 20, 2)
    assert_frequencies(lambda seed: run_rounds(PowD(2), [5, 4, 3, 2, 1], 2, seed=seed)[0], chance)


@given(st.permutations(range(6)), st.integers(1, 6), st.integers(0, 1000))
def test_asking_everybody_finds_the_largest_under_any_numbering(order, clients_per_round, seed):
    losses, sizes = np.arange(6.0), np.array([3, 1, 4, 1, 5, 9])
    plain, _ = run_rounds(PowD(6), losses.tolist(), clients_per_round, sizes=sizes.tolist(), seed=seed)
    renumbered, _ = run_rounds(
        PowD(6), losses[order].tolist(), clients_per_round, sizes=sizes[order].tolist(), seed=seed
    )
    assert [order[k] for k in renumbered] == plain == [5, 4, 3, 2, 1, 0][:clients_per_round]


@pytest.mark.parametrize(
    ("d", "clients_per_round", "absent", "asked"),
    [(None, 2, (), 4), (None, 3, (), 5), (4, 3, (), 4), (100, 3, (), 5), (4, 2, (1, 2, 3), 2), (5, 1, (), 5)],
)
def test_number_of_candidates(d, clients_per_round, absent, asked):
    taken, candidates = run_rounds(PowD(d), [1.0] * 5, clients_per_round, absent=absent)
    assert len(candidates) == asked
    assert len(taken) == min(clients_per_round, asked)
    assert not set(absent) & set(candidates)


def test_weights_are_equal():
    assert PowD().weigh(view(SIZES, 2), updates([0, 4], SIZES)).tolist() == [0.5, 0.5]


def test_d_below_the_clients_per_round_is_refused():
    with pytest.raises(UserError, match=r"d must be at least clients_per_round \(3\), got 2"):
        PowD(2).check_clients_per_round(3)


def test_a_hundred_thousand_clients():
    answers = Losses(np.linspace(0, 1, 100_000).tolist())
    now = view([3] * 100_000, 500, needs=Need.LOSSES, answers=answers)
    assert sorted(chosen(PowD(100_000).select(now))) == list(range(99_500, 100_000))
