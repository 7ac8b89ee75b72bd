"""DivFL: whose gradients are asked for, what is kept of them, cohorts, weights, edge cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import plain_views
import pytest
import torch
from scipy.spatial.distance import cdist

from flsel.errors import UserError
from flsel.selector import Need, Plan, Updates, View
from flsel.selectors import _sketch
from flsel.selectors.divfl import DivFL


class Federation:
    """Answers gradients from a table, and updates that are their negative; notes who was asked."""

    def __init__(self, table: Sequence[Sequence[float]]) -> None:
        self.table = torch.tensor(table)
        self.asked: list[list[int]] = []

    def gradients(self, clients):
        self.asked.append(list(clients))
        return {"w": self.table[list(clients)]}

    def shadow(self, clients):
        self.asked.append(list(clients))
        return {"w": 1.0 - self.table[list(clients)]}


def see(federation: Federation, selector: DivFL, clients_per_round: int, **changes) -> View:
    sizes = changes.pop("sizes", [10] * len(federation.table))
    now = plain_views.view(sizes, clients_per_round, needs=selector.needs, answers=federation, **changes)
    return replace(now, params={"w": torch.ones(federation.table.shape[1])})


def report(view: View, plan: Plan, federation: Federation) -> Updates:
    clients = plain_views.chosen(plan)
    return Updates(
        plan=plan,
        sizes=view.sizes[clients],
        steps=torch.ones(len(clients), dtype=torch.int64),
        needs=view.needs,
        answers={"deltas": {"w": -federation.table[clients]}},
    )


def fresh(selector: DivFL, clients: int) -> DivFL:
    selector.reset(torch.full((clients,), 10), 2)
    return selector


LINE = [[0.0], [1.0], [2.0], [10.0], [11.0], [30.0]]


@pytest.mark.parametrize("optimizer", ["lazy", "greedy"])
@pytest.mark.parametrize("signal", ["gradient", "update"])
@pytest.mark.parametrize("mode", ["ideal", "no_overhead"])
def test_the_cohort_stands_for_everybody(mode, signal, optimizer):
    selector = fresh(DivFL(mode, signal, optimizer=optimizer), 6)
    federation = Federation(LINE)
    plan = selector.select(see(federation, selector, 3))
    assert sorted(plain_views.chosen(plan)) == [2, 3, 5]
    rows = np.array(LINE)
    np.testing.assert_allclose(selector.distance_.numpy(), cdist(rows, rows), atol=1e-6)
    assert federation.asked == [[0, 1, 2, 3, 4, 5]]


def test_ideal_asks_everybody_available_every_round():
    selector, federation = fresh(DivFL(), 6), Federation(LINE)
    selector.select(see(federation, selector, 2))
    federation.table = federation.table.flip(0)
    now = see(federation, selector, 2, absent=[1, 4])
    plan = selector.select(now)
    assert federation.asked == [[0, 1, 2, 3, 4, 5], [0, 2, 3, 5]]
    rows = np.array([[30.0], [1.0], [10.0], [2.0], [11.0], [0.0]])  # Clients 1 and 4 as they last were.
    np.testing.assert_allclose(selector.distance_.numpy(), cdist(rows, rows), atol=1e-6)
    assert not {1, 4} & set(plain_views.chosen(plan))
    selector.observe(now, report(now, plan, federation), torch.ones(2))
    assert len(federation.asked) == 2


@pytest.mark.parametrize("signal", ["gradient", "update"])
def test_no_overhead_refreshes_participants_only(signal):
    selector, federation = fresh(DivFL("no_overhead", signal), 6), Federation(LINE)
    now = see(federation, selector, 2, absent=[0])
    plan = selector.select(now)
    clients = plain_views.chosen(plan)
    assert federation.asked == [[1, 2, 3, 4, 5]]
    assert selector.known_.tolist() == [False, True, True, True, True, True]
    federation.table = federation.table + 5.0
    selector.observe(now, report(now, plan, federation), torch.ones(2))
    assert federation.asked[1:] == ([clients] if signal == "gradient" else [])
    rows = np.array(LINE)
    rows[clients] += 5.0
    expected = cdist(rows, rows)
    expected[0] = expected[:, 0] = 0.0
    np.testing.assert_allclose(selector.distance_.numpy(), expected, atol=1e-6)
    selector.select(see(federation, selector, 2))
    assert federation.asked[-1] == [0]
    rows[0] += 5.0
    np.testing.assert_allclose(selector.distance_.numpy(), cdist(rows, rows), atol=1e-6)


def test_distances_stay_symmetric_whatever_is_replaced():
    rng = np.random.default_rng(0)
    selector = fresh(DivFL("no_overhead"), 30)
    table = rng.normal(size=(30, 3000)).astype(np.float32)
    federation = Federation(table.tolist())
    for _ in range(4):
        now = see(federation, selector, 7)
        plan = selector.select(now)
        federation.table = federation.table + torch.from_numpy(rng.normal(size=table.shape)).float()
        selector.observe(now, report(now, plan, federation), torch.ones(7))
        distance = selector.distance_.numpy()
        np.testing.assert_array_equal(distance, distance.T)
        np.testing.assert_array_equal(np.diag(distance), 0.0)
        rows = selector.row_.double().numpy()
        np.testing.assert_allclose(distance, cdist(rows, rows), atol=1e-9)


@pytest.mark.parametrize("mode", ["ideal", "no_overhead"])
def test_sketches_stand_for_gradients(mode):
    rng = np.random.default_rng(0)
    kinds = rng.permutation(np.arange(40) % 4)
    table = 10 * rng.normal(size=(4, 3000))[kinds] + rng.normal(size=(40, 3000))
    selector, federation = fresh(DivFL(mode, sketch=500), 40), Federation(table.tolist())
    for _ in range(3):
        now = see(federation, selector, 4)
        plan = selector.select(now)
        assert sorted(kinds[plain_views.chosen(plan)]) == [0, 1, 2, 3]
        federation.table = federation.table + torch.from_numpy(rng.normal(size=table.shape)).float()
        selector.observe(now, report(now, plan, federation), torch.ones(4))
    assert selector.row_.shape == (40, 500)
    distance = selector.distance_.numpy()
    assert distance.dtype == np.float32
    np.testing.assert_array_equal(distance, distance.T)
    np.testing.assert_array_equal(np.diag(distance), 0.0)
    rows = selector.row_.double().numpy()
    # One of the same kind is a tenth of its length away.
    np.testing.assert_allclose(distance, cdist(rows, rows), rtol=1e-3)


def test_large_populations_are_sketched(monkeypatch):
    monkeypatch.setattr(_sketch, "EXACT", 5)
    selector, federation = fresh(DivFL(), 6), Federation(LINE)
    assert sorted(plain_views.chosen(selector.select(see(federation, selector, 3)))) == [2, 3, 5]
    assert selector.distance_.dtype == torch.float32
    rows = np.array(LINE)
    np.testing.assert_allclose(selector.distance_.numpy(), cdist(rows, rows), atol=1e-4)


def test_gradients_that_are_not_finite_do_not_count():
    table = [[0.0], [1.0], [math.nan], [math.inf], [9.0], [10.0]]
    selector, federation = fresh(DivFL(), 6), Federation(table)
    for seed in range(5):
        plan = selector.select(see(federation, selector, 2, seed=seed))
        assert sorted(plain_views.chosen(plan)) in ([0, 4], [1, 4])
    assert selector.known_.tolist() == [True, True, False, False, True, True]
    assert len(selector.select(see(federation, selector, 6))) == 6
    federation.table[2] = 5.0
    selector.select(see(federation, selector, 2))
    assert selector.known_[2]


def test_a_gradient_too_large_for_single_precision_does_not_count_in_sketches():
    table = np.random.default_rng(0).normal(size=(6, 50))
    table[2] *= 1e20
    selector, federation = fresh(DivFL(sketch=8), 6), Federation(table.tolist())
    plan = selector.select(see(federation, selector, 2))
    assert selector.known_.tolist() == [True, True, False, True, True, True]
    assert 2 not in plain_views.chosen(plan)
    assert selector.distance_.isfinite().all()


def test_a_sketch_has_no_distance_to_itself():
    table = np.full((300, 40), 1e-3)
    table[:, 0] = np.random.default_rng(0).uniform(1, 100, size=300)
    selector, federation = fresh(DivFL(sketch=16), 300), Federation(table.tolist())
    selector.select(see(federation, selector, 2))
    np.testing.assert_array_equal(selector.distance_.numpy().diagonal(), 0.0)


def test_gradients_shorter_than_the_sketch_are_kept_whole():
    selector, federation = fresh(DivFL(sketch=16), 6), Federation(LINE)
    selector.select(see(federation, selector, 2))
    assert selector.row_.tolist() == LINE


def test_strangers_with_examples_fill_a_cohort_at_random():
    table = [[0.0]] + [[math.nan]] * 5
    selector, federation = fresh(DivFL(), 6), Federation(table)
    filled = set()
    for seed in range(20):
        now = see(federation, selector, 3, seed=seed, sizes=[10, 0, 10, 10, 0, 10])
        clients = plain_views.chosen(selector.select(now))
        assert clients[0] == 0
        filled |= set(clients[1:])
    assert filled == {2, 3, 5}
    now = see(federation, selector, 5, sizes=[10, 0, 10, 10, 0, 10])
    assert sorted(plain_views.chosen(selector.select(now))) == [0, 2, 3, 5]


def test_clients_without_examples_are_never_asked():
    selector, federation = fresh(DivFL(), 6), Federation(LINE)
    selector.select(see(federation, selector, 2, sizes=[10, 0, 10, 10, 10, 10]))
    assert federation.asked == [[0, 2, 3, 4, 5]]
    nobody = fresh(DivFL("no_overhead"), 6)
    now = see(federation, nobody, 2, sizes=[0] * 6)
    plan = nobody.select(now)
    assert len(plan) == 2
    nobody.observe(now, report(now, plan, federation), torch.ones(2))
    assert not nobody.known_.any()


def test_a_scale_and_a_common_shift_change_nothing():
    rng = np.random.default_rng(1)
    table = rng.normal(size=(20, 4))
    cohorts = []
    for changed in (table, 3.0 * table, table + 7.0, -table):
        selector = fresh(DivFL(), 20)
        cohorts.append(plain_views.chosen(selector.select(see(Federation(changed.tolist()), selector, 6))))
    assert all(cohort == cohorts[0] for cohort in cohorts)


def test_weights():
    federation = Federation(LINE)
    sizes = [10, 20, 30, 40, 50, 60]
    expected = {
        "size": [30 / 130, 40 / 130, 60 / 130],
        "samples": [30 / 130, 40 / 130, 60 / 130],
        "equal": [1 / 3] * 3,
        "represented": [3 / 6, 2 / 6, 1 / 6],
    }
    for weights, values in expected.items():
        selector = fresh(DivFL(weights=weights), 6)
        now = see(federation, selector, 3, sizes=sizes)
        selector.select(now)
        updates = report(now, Plan.star([2, 3, 5]), federation)
        np.testing.assert_allclose(selector.weigh(now, updates), values)


def test_a_stranger_represents_itself():
    federation = Federation([[0.0], [1.0], [math.nan], [math.nan]])
    selector = fresh(DivFL(weights="represented"), 4)
    now = see(federation, selector, 3)
    selector.select(now)
    updates = report(now, Plan.star([0, 2, 3]), federation)
    np.testing.assert_allclose(selector.weigh(now, updates), [2 / 4, 1 / 4, 1 / 4])
    updates = report(now, Plan.star([3]), federation)
    np.testing.assert_allclose(selector.weigh(now, updates), [1.0])


@pytest.mark.parametrize(
    ("kind", "needs"),
    [
        ({}, Need.GRADIENTS),
        ({"mode": "no_overhead"}, Need.GRADIENTS),
        ({"signal": "update"}, Need.SHADOW),
        ({"signal": "update", "mode": "no_overhead"}, Need.SHADOW | Need.DELTAS),
    ],
    ids=str,
)
def test_needs_follow_mode_and_signal(kind, needs):
    assert DivFL(**kind).needs == needs


@pytest.mark.parametrize("absent", [[], [3, 500]], ids=["all", "some"])
def test_everybodys_distances_are_those_of_their_gradients(absent):
    table = np.random.default_rng(0).normal(size=(600, 20))
    selector = fresh(DivFL(), 600)
    for scale in (1.0, 2.0):
        selector.select(see(Federation((scale * table).tolist()), selector, 5, absent=absent))
    rows = np.float32(2 * table)
    rows[absent] = 0.0
    expected = cdist(rows, rows)
    expected[absent] = expected[:, absent] = 0.0
    np.testing.assert_allclose(selector.distance_.numpy(), expected, atol=1e-9)
    np.testing.assert_array_equal(selector.distance_.numpy(), selector.distance_.numpy().T)


def test_more_clients_than_the_distances_are_kept_for():
    with pytest.raises(UserError, match=r"DivFL needs at most 20,000 clients.*got 20,001"):
        DivFL().reset(torch.ones(20_001, dtype=torch.int64), 10)


@pytest.mark.parametrize("clients_per_round", [10, 100])
def test_three_thousand_clients(clients_per_round):
    table = np.random.default_rng(0).normal(size=(3000, 20)) + 8 * np.arange(3000)[:, None] % 7
    selector, federation = fresh(DivFL("no_overhead"), 3000), Federation(table.tolist())
    selector.select(see(federation, selector, clients_per_round))
    now = see(federation, selector, clients_per_round)
    plan = selector.select(now)
    updates = report(now, plan, federation)
    selector.observe(now, updates, selector.weigh(now, updates))
    assert len(set(plan.paths)) == clients_per_round
