"""FedCat against Algorithms 1-3 of its paper, written out round by round."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_views import assert_frequencies, view

from flsel.selector import IDLE, Updates, View
from flsel.selectors.fedcat import FedCat, chances, dispatch


class Attendance:
    """Answers who is available at which hop, from a table [H, N]; notes the hops that were asked."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = torch.from_numpy(table)
        self.asked: list[int] = []

    def available_at(self, hop: int) -> torch.Tensor:
        self.asked.append(hop)
        return self.table[hop]


def at_round(round: int, sizes: list[int], clients_per_round: int, **settings) -> View:
    seed, table = settings.get("seed", 0), settings.get("table")
    table = np.ones((clients_per_round, len(sizes)), dtype=bool) if table is None else table
    now = view(sizes, clients_per_round, seed=seed * 1000 + round, answers=Attendance(table))
    return replace(
        now, round=round, rounds=settings.get("rounds", 1000), available=torch.from_numpy(table[0])
    )


def primed(sizes: list[int], groups: list[int], counts: np.ndarray, **arguments) -> FedCat:
    """A selector in the middle of a run: groups and counts given."""
    selector = FedCat(**arguments)
    selector.reset(torch.tensor(sizes), 2)
    selector.load_state_dict({"groups_": torch.tensor(groups), "count_": torch.from_numpy(counts)})
    return selector


def updates_of(plan, sizes: list[int]) -> Updates:
    seen = torch.tensor([sum(sizes[k] for k in visits) for visits in plan.visits])
    return Updates(plan, seen, torch.ones_like(seen), FedCat.needs, {})


def paper(counts: np.ndarray, groups: list[list[int]], sizes: list[int], rounds: range):
    """Algorithm 1 as printed, epsilon = 1, on models that are numbers: device k pulls m towards k.

    Returns the devices that trained each copy in every round, and the global models after the cycles.
    """
    clients_per_round, counts, glb = len(groups), counts.copy(), 0.0
    trained, models = [], []
    for r in rounds:
        offset = r % clients_per_round
        l_dev = []
        for group in groups:  # Algorithm 3, the greedy branch
            weights = [1 / math.sqrt(counts[dev][offset]) for dev in group]
            dev = group[int(np.argmax(weights))]
            l_dev.append(dev)
            counts[dev][offset] += 1
        if offset == 0:
            copies = [(glb, 0.0)] * clients_per_round
        tags = [(offset + i) % clients_per_round for i in range(clients_per_round)]  # Algorithm 2
        gradients = [0.5 * (dev - copies[tags.index(tag)][0]) for tag, dev in enumerate(l_dev)]
        copies = [
            (m + gradients[tag], d + sizes[l_dev[tag]]) for (m, d), tag in zip(copies, tags, strict=True)
        ]
        trained.append([l_dev[tag] for tag in tags])
        if offset == clients_per_round - 1:  # Equation (3)
            glb = sum(d * m for m, d in copies) / sum(d for _, d in copies)
            models.append(glb)
    return trained, models, counts


def test_the_papers_algorithms_round_by_round():
    sizes = [4, 9, 1, 7, 3, 8, 2, 6, 5, 10]
    groups = [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    # Far apart, so that no two counts of a group are ever equal: a tie is broken at random.
    counts = np.random.default_rng(5).permuted(np.tile(np.arange(1, 11)[:, None] * 100, 3), axis=0)
    trained, models, after = paper(counts, groups, sizes, range(3, 9))
    assignment = [next(g for g, members in enumerate(groups) if k in members) for k in range(10)]
    selector = primed(sizes, assignment, counts, lam=100, epsilon=1.0)
    glb = 0.0
    for cycle, expected in enumerate(models):
        now = at_round(3 + 3 * cycle, sizes, 3)
        plan = selector.select(now)
        assert [list(hop) for hop in zip(*plan.paths, strict=True)] == trained[3 * cycle : 3 * cycle + 3]
        ends = []
        for path in plan.paths:
            model = glb
            for device in path:
                model += 0.5 * (device - model)
            ends.append(model)
        weights = selector.weigh(now, updates_of(plan, sizes))
        glb += float(weights @ (torch.tensor(ends, dtype=torch.float64) - glb))
        assert glb == pytest.approx(expected, abs=1e-12)
    np.testing.assert_array_equal(selector.count_.numpy(), after)


def test_dispatch_is_the_papers_rotation():
    # Section 3.2, 1-based: copy i meets selected device ((i + j - 2) % K + 1) in round j of the cycle.
    for clients_per_round in range(1, 6):
        chosen = [
            [100 * j + g for g in range(1, clients_per_round + 1)] for j in range(1, clients_per_round + 1)
        ]
        paths = dispatch(chosen)
        for i in range(1, clients_per_round + 1):
            for j in range(1, clients_per_round + 1):
                assert paths[i - 1][j - 1] == 100 * j + ((i + j - 2) % clients_per_round + 1)


@pytest.mark.parametrize(
    ("counts", "greedy", "expected"),
    [
        ([1, 4, 9], False, [6 / 11, 3 / 11, 2 / 11]),
        ([2, 2], False, [0.5, 0.5]),
        ([0, 4, 9], False, [1, 0, 0]),
        ([0, 4, 0], False, [0.5, 0, 0.5]),
        ([1, 4, 9], True, [1, 0, 0]),
        ([4, 1, 1], True, [0, 0.5, 0.5]),
        ([0, 0, 1], True, [0.5, 0.5, 0]),
        ([7], False, [1]),
    ],
)
def test_chances_follow_equations_4_and_5(counts, greedy, expected):
    np.testing.assert_allclose(chances(np.array(counts), greedy=greedy), expected, atol=1e-15)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.booleans())
def test_chances_are_a_probability_vector(counts, greedy):
    p = chances(np.array(counts), greedy=greedy)
    assert p.sum() == pytest.approx(1)
    assert (p >= 0).all()
    order = np.argsort(counts)
    assert (np.diff(p[order]) <= 1e-15).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_devices_are_drawn_with_their_chances(epsilon):
    counts = np.array([[1, 9], [4, 4], [9, 1], [5, 5]])
    sizes, groups = [1] * 4, [0, 0, 0, 1]

    draw = np.array([6, 3, 2]) / 11
    greedy = np.array([1, 0, 0])

    def kept(seed):
        # Round 2 is the first of a cycle, of which the run has one round left.
        selector = primed(sizes, groups, counts, lam=5, epsilon=epsilon)
        return [selector.select(at_round(2, sizes, 2, seed=seed, rounds=3)).paths[0][0]]

    assert_frequencies(kept, [*(epsilon * greedy + (1 - epsilon) * draw), 0.0], times=1500)


@given(
    clients=st.integers(1, 20),
    cycles=st.integers(1, 4),
    lam=st.integers(1, 3),
    epsilon=st.floats(0, 1),
    data=st.data(),
)
def test_a_copy_meets_every_group_once_and_no_device_twice(clients, cycles, lam, epsilon, data):
    clients_per_round = data.draw(st.integers(1, clients))
    sizes = [3] * clients
    selector = FedCat(lam=lam, epsilon=epsilon)
    selector.reset(torch.tensor(sizes), 2)
    for cycle in range(cycles):
        before = selector.groups_
        plan = selector.select(
            at_round(cycle * clients_per_round, sizes, clients_per_round, seed=data.draw(st.integers(0, 99)))
        )
        groups = selector.groups_
        occupied = torch.bincount(groups, minlength=clients_per_round)
        assert len(plan) == plan.hops == clients_per_round
        assert occupied.min() >= 1
        assert occupied.max() - occupied.min() <= 1
        assert cycle % lam == 0 or torch.equal(before, groups)
        for path in plan.paths:
            assert sorted(int(groups[k]) for k in path) == list(range(clients_per_round))
            assert len(set(path)) == clients_per_round
        for hop in range(clients_per_round):
            assert len({path[hop] for path in plan.paths}) == clients_per_round
        assert selector.count_.sum(dim=0).tolist() == [clients_per_round * (cycle + 1)] * clients_per_round


def test_groups_are_drawn_anew_every_lambda_cycles():
    sizes, clients_per_round, lam = [1] * 30, 3, 2
    selector = FedCat(lam=lam)
    selector.reset(torch.tensor(sizes), 2)
    seen = []
    for cycle in range(8):
        selector.select(at_round(cycle * clients_per_round, sizes, clients_per_round))
        seen.append(selector.groups_.tolist())
    assert all(seen[c] == seen[c + 1] for c in range(0, 8, 2))
    assert len({tuple(groups) for groups in seen}) == 4


def test_every_device_gets_its_turn_at_every_position():
    # Six devices in two groups of three: whoever has not been chosen at a position comes first.
    sizes = [1] * 6
    selector = FedCat(lam=100, epsilon=0.0)
    selector.reset(torch.tensor(sizes), 2)
    for cycle in range(3):
        selector.select(at_round(2 * cycle, sizes, 2))
    assert selector.count_.tolist() == [[1, 1]] * 6


@given(clients=st.integers(2, 12), epsilon=st.floats(0, 1), grouping=st.booleans(), data=st.data())
def test_only_devices_available_at_the_hop_are_chosen(clients, epsilon, grouping, data):
    clients_per_round = data.draw(st.integers(1, clients))
    table = np.random.default_rng(data.draw(st.integers(0, 10**6))).random((clients_per_round, clients)) < 0.4
    table[0, data.draw(st.integers(0, clients - 1))] = True
    left = data.draw(st.integers(1, 2 * clients_per_round))
    selector = FedCat(epsilon=epsilon, grouping=grouping)
    selector.reset(torch.ones(clients, dtype=torch.int64), 2)
    now = at_round(0, [1] * clients, clients_per_round, table=table, rounds=left)
    plan = selector.select(now)
    assert plan.hops == min(clients_per_round, left)
    assert now.answers.asked == list(range(1, plan.hops))
    assert all(plan.visits)
    trained = Counter()
    for hop in range(plan.hops):
        clients_now = [path[hop] for path in plan.paths if path[hop] != IDLE]
        assert all(table[hop][k] for k in clients_now)
        assert len(set(clients_now)) == len(clients_now)
        trained[hop] = len(clients_now)
        if grouping:
            # A copy idles only where the group that it meets has nobody available.
            served = {int(g) for g in selector.groups_[torch.from_numpy(table[hop])]}
            assert len(clients_now) == len(served)
        else:
            assert len(clients_now) == min(clients_per_round, int(table[hop].sum()))
    if grouping:
        assert selector.count_.sum(dim=0).tolist() == [trained[hop] for hop in range(clients_per_round)]


def test_later_availability_does_not_reach_earlier_picks():
    sizes = [1] * 12
    full, thinned = np.ones((4, 12), dtype=bool), np.ones((4, 12), dtype=bool)
    thinned[3, ::2] = False
    plans = []
    for table in (full, thinned):
        selector = FedCat()
        selector.reset(torch.tensor(sizes), 2)
        plans.append(selector.select(at_round(0, sizes, 4, table=table)))
    assert [path[:3] for path in plans[0].paths] == [path[:3] for path in plans[1].paths]
    assert plans[0] != plans[1]


def test_a_copy_that_never_trains_is_left_out():
    table = np.array([[True, False], [True, False]])
    selector = primed([3, 4], [0, 1], np.ones((2, 2), dtype=np.int64), lam=9)
    # One round is left: copy 0 meets group 0, copy 1 group 1, where nobody is.
    assert selector.select(at_round(2, [3, 4], 2, table=table, rounds=3)).paths == ((0,),)
    assert selector.select(at_round(4, [3, 4], 2, table=table)).paths == ((0, IDLE), (IDLE, 0))


def test_weights_are_the_examples_along_the_path():
    sizes = [5, 1, 5, 14]
    selector = primed(sizes, [0, 0, 1, 1], np.ones((4, 2), dtype=np.int64), lam=9)
    table = np.array([[True, False, True, False], [True, False, False, False]])
    now = at_round(2, sizes, 2, table=table)
    plan = selector.select(now)
    assert plan.paths == ((0, IDLE), (2, 0))
    assert selector.weigh(now, updates_of(plan, sizes)).tolist() == pytest.approx([1 / 3, 2 / 3])
    lonely = updates_of(selector.select(at_round(4, sizes, 2, table=~table[::-1], rounds=5)), sizes)
    weights = selector.weigh(now, lonely)
    assert weights.tolist() == pytest.approx([s / sum(lonely.sizes.tolist()) for s in lonely.sizes.tolist()])


def test_without_concatenation_groups_and_counts_serve_one_round():
    sizes, clients_per_round = [2] * 9, 3
    selector = FedCat(concatenation=False, lam=2)
    selector.reset(torch.tensor(sizes), 2)
    for round in range(12):
        plan = selector.select(at_round(round, sizes, clients_per_round))
        assert plan.hops == 1
        assert sorted(int(selector.groups_[path[0]]) for path in plan.paths) == [0, 1, 2]
    # Columns are the positions of the cycle: round r counts in column r mod K.
    assert selector.count_.sum(dim=0).tolist() == [12, 12, 12]


def test_without_grouping_devices_are_drawn_uniformly():
    sizes = [1, 50, 3, 9, 7]
    repeats = 0
    for position in range(2):

        def at_position(seed, k=position):
            selector = FedCat(grouping=False)
            selector.reset(torch.tensor(sizes), 2)
            return selector.select(at_round(0, sizes, 2, seed=seed)).paths[0][k : k + 1]

        assert_frequencies(at_position, [0.2] * 5)
    for seed in range(100):
        selector = FedCat(grouping=False)
        selector.reset(torch.tensor(sizes), 2)
        plan = selector.select(at_round(0, sizes, 2, seed=seed))
        repeats += any(len(set(path)) < 2 for path in plan.paths)
    # A copy may meet a device twice: chance 1 - (4/5)^2 or a little less for one of two copies.
    assert 10 < repeats < 70


def test_with_neither_it_is_fedavg():
    def draw(seed):
        selector = FedCat(grouping=False, concatenation=False)
        selector.reset(torch.ones(5, dtype=torch.int64), 2)
        plan = selector.select(at_round(0, [1] * 5, 2, seed=seed))
        assert plan.hops == 1
        return [path[0] for path in plan.paths]

    assert_frequencies(draw, [0.4] * 5)


def test_another_clients_per_round_starts_the_counts_anew():
    selector = FedCat()
    selector.reset(torch.ones(6, dtype=torch.int64), 2)
    selector.select(at_round(0, [1] * 6, 2))
    selector.select(at_round(7, [1] * 6, 3))
    assert selector.count_.shape == (6, 3)
    assert torch.bincount(selector.groups_).tolist() == [2, 2, 2]


@pytest.mark.parametrize("clients", [10_000, 100_000])
@pytest.mark.parametrize("clients_per_round", [10, 100])
def test_speed_of_a_cycle(clients, clients_per_round):
    sizes = [5] * clients
    selector = FedCat()
    selector.reset(torch.tensor(sizes), 2)
    now = at_round(0, sizes, clients_per_round)
    plan = selector.select(now)
    assert len(plan) == len(selector.weigh(now, updates_of(plan, sizes))) == clients_per_round
