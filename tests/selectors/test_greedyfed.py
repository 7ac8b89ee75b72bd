"""GreedyFed and S-FedAvg: values of a cohort known in closed form, who is chosen, and what it costs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_views import chosen, view
from runs import built, settings

from flsel.data.data_config import DataConfig
from flsel.selector import Need, Plan, Updates, View
from flsel.selectors.greedyfed import GreedyFed

GOAL = np.array([1.0, 2.0])
ROWS = np.array([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.5], [2.0, 2.0]])
SIZES = [3, 1, 2, 4]


class Holdout:
    """The loss is the squared distance to a goal."""

    def __init__(self) -> None:
        self.asked = 0

    def server_loss(self, at: Any) -> float:
        self.asked += 1
        return float(((at["w"].numpy() - GOAL) ** 2).sum())


def seen(sizes: list[int] = SIZES, k: int = 4, *, seed: int = 0, round: int = 0, **more: Any) -> View:
    made = view(sizes, k, seed=seed, needs=GreedyFed.needs, answers=Holdout(), **more)
    return replace(made, params={"w": torch.tensor([0.5, 0.5], dtype=torch.float64)}, round=round)


def returned(rows: Any, clients: list[int], sizes: list[int] = SIZES) -> Updates:
    return Updates(
        plan=Plan.star(clients),
        sizes=torch.tensor([sizes[k] for k in clients]),
        steps=torch.ones(len(clients), dtype=torch.int64),
        needs=GreedyFed.needs,
        answers={"deltas": {"w": torch.as_tensor(np.asarray(rows, dtype=np.float64))}},
    )


def worth(cohort: tuple[int, ...]) -> float:
    """Minus the loss of the model with the average of some updates, by examples."""
    at = np.array([0.5, 0.5])
    if cohort:
        share = np.array([SIZES[k] for k in cohort]) / sum(SIZES[k] for k in cohort)
        at = at + share @ ROWS[list(cohort)]
    return -float(((at - GOAL) ** 2).sum())


def by_orders(clients: list[int]) -> dict[int, float]:
    found = dict.fromkeys(clients, 0.0)
    for order in itertools.permutations(clients):
        for place, client in enumerate(order):
            before = tuple(sorted(order[:place]))
            found[client] += worth(tuple(sorted((*before, client)))) - worth(before)
    return {client: value / math.factorial(len(clients)) for client, value in found.items()}


def taught(selector: GreedyFed, cohorts: list[list[int]]) -> GreedyFed:
    selector.reset(torch.tensor(SIZES), 2)
    for round, cohort in enumerate(cohorts):
        absent = [k for k in range(4) if k not in cohort]
        shown = seen(k=len(cohort), round=round, absent=absent)
        order = chosen(selector.select(shown))
        assert sorted(order) == sorted(cohort)
        back = returned(ROWS[order], order)
        selector.observe(shown, back, selector.weigh(shown, back))
    return selector


@pytest.mark.parametrize("cohort", [[0], [1, 3], [0, 1, 2], [0, 1, 2, 3]])
@pytest.mark.parametrize("most", [0, 6])
def test_the_values_of_a_cohort_are_its_shapley_values(cohort: list[int], most: int) -> None:
    """Exactly from all coalitions; from random orders where two of them are all, and always in the sum."""
    selector = taught(GreedyFed(exact=most, truncation=0.0), [cohort])
    if most or len(cohort) < 3:
        for client, expected in by_orders(cohort).items():
            assert selector.value_[client] == pytest.approx(expected, abs=1e-12)
    assert float(selector.value_.sum()) == pytest.approx(worth(tuple(cohort)) - worth(()))


def test_values_are_means_over_participations_or_fade() -> None:
    cohorts = [[0, 1], [0, 2], [0, 3]]
    parts = [by_orders(cohort)[0] for cohort in cohorts]
    assert taught(GreedyFed(), cohorts).value_[0] == pytest.approx(np.mean(parts))
    faded = 0.0
    for part in parts:
        faded = 0.8 * faded + 0.2 * part
    assert taught(GreedyFed(memory=0.8), cohorts).value_[0] == pytest.approx(faded)
    relevance = 0.0
    for part in parts:
        relevance = 0.75 * relevance + 0.25 * part
    assert taught(GreedyFed("softmax"), cohorts).value_[0] == pytest.approx(relevance)


def known(selector: GreedyFed, values: list[float], counts: list[int]) -> GreedyFed:
    selector.reset(torch.tensor(SIZES), 2)
    selector.value_, selector.count_ = torch.tensor(values).double(), torch.tensor(counts)
    return selector


def test_the_largest_values_are_chosen_after_everybody_took_part() -> None:
    assert chosen(known(GreedyFed(), [0.1, -0.2, 0.4, 0.3], [1] * 4).select(seen(k=2))) == [2, 3]
    firsts = {
        tuple(chosen(known(GreedyFed(), [9.0, 0.0, 9.0, 0.0], [1, 0, 1, 0]).select(seen(k=2, seed=s))))
        for s in range(20)
    }
    assert firsts == {(1, 3), (3, 1)}


def test_exploration_is_the_upper_bound_of_its_formula() -> None:
    values, counts, t = [0.5, 0.4, 0.3, 0.1], [30, 9, 4, 1], 40
    index = [v + 0.6 * math.sqrt(math.log(t) / c) for v, c in zip(values, counts, strict=True)]
    found = chosen(known(GreedyFed(explore=0.6), values, counts).select(seen(k=4, round=t)))
    assert found == np.argsort(-np.array(index)).tolist() != [0, 1, 2, 3]


def test_softmax_draws_by_the_relevances() -> None:
    values, times = [0.0, 1.0, -1.0, 0.5], 2000
    hits = Counter(
        chosen(known(GreedyFed("softmax", scale=2.0), values, [0] * 4).select(seen(k=1, seed=s)))[0]
        for s in range(times)
    )
    p = np.exp(2 * np.array(values))
    p /= p.sum()
    share = np.array([hits[k] for k in range(4)]) / times
    assert (np.abs(share - p) <= 5 * np.sqrt(p * (1 - p) / times)).all()


def test_what_is_not_finite_teaches_nothing_and_stops_nothing() -> None:
    selector = known(GreedyFed(), [0.0] * 4, [1] * 4)
    rows = ROWS.copy()
    rows[1] = math.nan
    selector.observe(seen(), returned(rows, [0, 1, 2, 3]), torch.zeros(4))
    assert selector.valued_.tolist() == [1, 0, 1, 1]
    assert float(selector.value_.sum()) == pytest.approx(worth((0, 2, 3)) - worth(()))
    before = selector.value_.clone()
    shown = seen()
    shown.answers.server_loss = lambda at: math.nan
    selector.observe(shown, returned(ROWS, [0, 1, 2, 3]), torch.zeros(4))
    assert torch.equal(selector.value_, before)


@pytest.mark.parametrize(("exact", "least", "most"), [(3, 8, 8), (0, 2, 8)])
def test_the_ledger_counts_the_coalitions(tmp_path: Path, exact: int, least: int, most: int) -> None:
    base = settings(tmp_path, selector=GreedyFed(exact=exact))
    run = built(replace(base, data=replace(base.data, server=0.2)))
    for _ in range(3):
        run.server.step()
    assert 3 * least <= run.server.ledger["server_passes"] <= 3 * most
    assert isinstance(base.data, DataConfig)
    assert Need.SERVER_LOSS in GreedyFed.needs


def test_losses_of_a_stack_are_those_of_its_models(tmp_path: Path) -> None:
    base = settings(tmp_path, selector=GreedyFed())
    server = built(replace(base, data=replace(base.data, server=0.2))).server
    draw = torch.Generator().manual_seed(0)
    models = {
        name: torch.stack([value + torch.randn(value.shape, generator=draw) for _ in range(9)])
        for name, value in server.params.items()
    }
    evaluator = server.evaluator
    alone = [evaluator.server_loss({name: value[k] for name, value in models.items()}) for k in range(9)]
    torch.testing.assert_close(evaluator._together(models), torch.tensor(alone).double(), rtol=1e-5, atol=0)
    for count in (1, 2, 3, 9):
        some = {name: value[:count] for name, value in models.items()}
        torch.testing.assert_close(
            evaluator.server_losses(some), torch.tensor(alone[:count]).double(), rtol=1e-5, atol=0
        )


def test_clients_without_examples_count_equally_in_coalitions() -> None:
    sizes = [0, 0, 0, 0]
    selector = known(GreedyFed(), [0.0] * 4, [1] * 4)
    selector.observe(seen(sizes), returned(ROWS, [0, 1, 2, 3], sizes), torch.zeros(4))
    at = np.array([0.5, 0.5])
    whole = -float(((at + ROWS.mean(0) - GOAL) ** 2).sum())
    assert float(selector.value_.sum()) == pytest.approx(whole + float(((at - GOAL) ** 2).sum()))
