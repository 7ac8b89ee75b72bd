"""UCB-CS against its sums over the history, written out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from plain_views import chosen, updates, view

from flsel.rng import generator
from flsel.selector import Need
from flsel.selectors.ucbcs import UCBCS

SIZES = [4, 1, 2, 3, 5]
# (cohort, reported losses) of five rounds
HISTORY = [
    ([0, 1], [2.0, 3.0]),
    ([2, 3], [1.0, 4.0]),
    ([4, 0], [0.5, 1.0]),
    ([3, 0], [2.5, 0.25]),
    ([1, 3], [3.5, 1.5]),
]


def after_rounds(selector: UCBCS, history: Any = HISTORY, sizes: list[int] = SIZES) -> UCBCS:
    """Run rounds whose cohorts are given: those who are not in them are away."""
    selector.reset(torch.tensor(sizes), 2)
    for cohort, losses in history:
        absent = [client for client in range(len(sizes)) if client not in cohort]
        seen = view(sizes, len(cohort), absent=absent, needs=Need.OWN_LOSS)
        order = chosen(selector.select(seen))
        assert sorted(order) == sorted(cohort)
        back = updates(order, sizes, [dict(zip(cohort, losses, strict=True))[k] for k in order])
        selector.observe(seen, back, selector.weigh(seen, back))
    return selector


def written_out(gamma: float, sigma: float, history: Any = HISTORY, sizes: list[int] = SIZES) -> np.ndarray:
    now, index = len(history), np.zeros(len(sizes))
    time = sum(gamma ** (now - s) for s in range(1, now + 1))
    for k, size in enumerate(sizes):
        count = total = 0.0
        for s, (cohort, losses) in enumerate(history, start=1):
            if k in cohort:
                count += gamma ** (now - s)
                total += gamma ** (now - s) * losses[cohort.index(k)]
        width = math.sqrt(2 * sigma**2 * math.log(time) / count)
        index[k] = size / sum(sizes) * (total / count + width)
    return index


def ranking(selector: UCBCS, sizes: list[int] = SIZES) -> list[int]:
    return chosen(selector.select(view(sizes, len(sizes))))


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.1])
@pytest.mark.parametrize("sigma", [0.0, 0.5, 5.0])
def test_the_largest_indices_are_chosen_in_order(gamma: float, sigma: float) -> None:
    expected = np.argsort(-written_out(gamma, sigma)).tolist()
    assert ranking(after_rounds(UCBCS(gamma, sigma))) == expected


def test_many_histories_of_many_clients() -> None:
    rng, sizes = generator(0, "test"), [3] * 9
    for _ in range(20):
        everybody = [list(range(0, 3)), list(range(3, 6)), list(range(6, 9))]
        cohorts = everybody + [sorted(rng.permutation(9)[:3].tolist()) for _ in range(8)]
        history = [(cohort, rng.exponential(size=3).tolist()) for cohort in cohorts]
        selector = after_rounds(UCBCS(0.8, 0.9), history, sizes)
        assert ranking(selector, sizes) == np.argsort(-written_out(0.8, 0.9, history, sizes)).tolist()


def test_without_discount_and_width_it_is_greedy_in_the_mean_loss() -> None:
    mean = np.array([np.mean([2.0, 1.0, 0.25]), 3.25, 1.0, np.mean([4.0, 2.5, 1.5]), 0.5])
    assert ranking(after_rounds(UCBCS(1.0, 0.0))) == np.argsort(-mean * np.array(SIZES)).tolist()


def test_auto_takes_the_standard_deviation_of_the_last_reports() -> None:
    automatic, fixed = after_rounds(UCBCS(0.7)), after_rounds(UCBCS(0.7, 1.0))
    assert automatic.sigma_ == pytest.approx(1.0)  # of 3.5 and 1.5
    assert ranking(automatic) == ranking(fixed)


def test_who_never_took_part_comes_first() -> None:
    assert set(ranking(after_rounds(UCBCS(0.7, 9.0), HISTORY[:1]))[:3]) == {2, 3, 4}
    first = {tuple(chosen(UCBCS_first(seed))) for seed in range(40)}
    assert len(first) > 5


def UCBCS_first(seed: int) -> Any:
    selector = UCBCS()
    selector.reset(torch.tensor(SIZES), 2)
    return selector.select(view(SIZES, 2, seed=seed))


def test_a_lost_report_counts_as_a_participation() -> None:
    lost = after_rounds(UCBCS(1.0, 0.0), [([0, 1], [2.0, math.nan]), ([2, 3], [1.0, math.inf]), ([4], [3.0])])
    assert ranking(lost) == [4, 0, 2, *sorted([1, 3], key=lambda k: ranking(replaced(lost)).index(k))]
    assert lost.mean_.tolist() == [2.0, 0.0, 1.0, 0.0, 3.0]


def replaced(selector: UCBCS) -> UCBCS:
    twin = replace(selector)
    twin.reset(torch.tensor(SIZES), 2)
    twin.load_state_dict(selector.state_dict())
    return twin


def test_a_participation_of_long_ago_is_explored_again_and_nothing_is_divided_by_zero() -> None:
    selector = after_rounds(UCBCS(0.1, 1.0))
    for _ in range(400):
        selector.select(view(SIZES, 2, absent=[0, 1, 2]))
    assert selector.count_.min() > 0
    assert set(ranking(selector)[:3]) == {0, 1, 2}
    assert selector.mean_.isfinite().all()
