"""TiFL: tiers by speed, credits, and probabilities that follow the tiers' losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from plain_views import chosen, view

from flsel.errors import UserError
from flsel.selectors.tifl import TiFL, probabilities, tiers_of

SECONDS = [5.0, 1.0, 4.0, 2.0, 3.0, 6.0]


class Answers:
    """Durations and losses from tables; notes who was asked."""

    def __init__(self, losses: dict[int, float]) -> None:
        self.table = losses
        self.asked: list[list[int]] = []

    def durations(self, clients: list[int]) -> torch.Tensor:
        seconds = torch.tensor(SECONDS, dtype=torch.float64)[clients]
        return torch.stack([seconds, 0 * seconds, 0 * seconds], dim=1)

    def losses(self, clients: list[int], at: Any) -> torch.Tensor:
        self.asked.append(list(clients))
        return torch.tensor([self.table.get(client, 1.0) for client in clients], dtype=torch.float64)


def run_rounds(selector: TiFL, answers: Answers, rounds: int, k: int = 2, **more: Any) -> list[list[int]]:
    found = []
    for round in range(rounds):
        now = view([10] * 6, k, seed=round, needs=selector.needs, answers=answers, **more)
        found.append(sorted(chosen(selector.select(replace(now, round=round)))))
    return found


def fresh(**arguments: Any) -> TiFL:
    selector = TiFL(**arguments)
    selector.reset(torch.full((6,), 10), 2)
    return selector


def test_tiers_are_of_equal_size_and_ordered_by_speed() -> None:
    assert tiers_of(np.array(SECONDS), 3).tolist() == [2, 0, 1, 0, 1, 2]
    assert np.bincount(tiers_of(np.arange(11.0), 4)).tolist() == [3, 3, 3, 2]
    assert tiers_of(np.array([1.0, 1.0]), 5).tolist() == [0, 1]


def test_worse_tiers_are_more_likely() -> None:
    assert probabilities(np.array([1.0, 3.0, 2.0]), np.ones(3, bool)) == pytest.approx([1 / 6, 3 / 6, 2 / 6])
    credit = np.array([True, False, True])
    assert probabilities(np.array([1.0, 3.0, 2.0]), credit) == pytest.approx([1 / 3, 0, 2 / 3])
    assert probabilities(np.array([1.0, np.nan]), np.zeros(2, bool)) == pytest.approx([1 / 3, 2 / 3])


def test_a_cohort_is_of_one_tier() -> None:
    tiers = [{1, 3}, {2, 4}, {0, 5}]
    cohorts = run_rounds(fresh(tiers=3, policy="uniform"), Answers({}), 60)
    assert all(set(cohort) in tiers for cohort in cohorts)
    assert {tiers.index(set(cohort)) for cohort in cohorts} == {0, 1, 2}
    assert run_rounds(fresh(tiers=3, policy="fast"), Answers({}), 3) == [[1, 3]] * 3
    assert run_rounds(fresh(tiers=3, policy="slow"), Answers({}), 3, absent=[0, 5]) == [[2, 4]] * 3


def test_credits_run_out() -> None:
    cohorts = run_rounds(fresh(tiers=3, policy="uniform", credits=(2, 1, 0)), Answers({}), 3)
    assert sorted(map(tuple, cohorts)) == [(1, 3), (1, 3), (2, 4)]
    assert len(run_rounds(fresh(tiers=3, policy="uniform", credits=(0, 0, 0)), Answers({}), 2)) == 2


def test_probabilities_change_where_the_last_tier_did_not_get_better() -> None:
    selector, answers = fresh(tiers=3, interval=2), Answers({0: 5.0, 5: 5.0})
    run_rounds(selector, answers, 2)
    assert selector.probability_.tolist() == pytest.approx([1 / 3] * 3)
    assert answers.asked == [[0, 1, 2, 3, 4, 5]]
    now = replace(view([10] * 6, 2, needs=selector.needs, answers=answers), round=2)
    better = fresh(tiers=3, interval=2)
    better.load_state_dict(selector.state_dict())
    selector.select(now)
    assert selector.probability_.tolist() == pytest.approx([2 / 6, 1 / 6, 3 / 6], abs=1 / 6 + 1e-9)
    assert selector.probability_[2] == 0.5
    fallen = Answers({client: 0.1 for client in range(6)})
    better.select(replace(now, answers=fallen))
    assert better.probability_.tolist() == pytest.approx([1 / 3] * 3)


def test_credits_are_one_for_each_tier() -> None:
    with pytest.raises(UserError, match="credits must be as many whole numbers as tiers"):
        TiFL(tiers=3, credits=(1, 2))
