"""FedPNS: probabilities of the reference, draws, the loss check, weights and odd updates."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_views import assert_frequencies, chosen, inclusion, view

from flsel.errors import UserError
from flsel.rng import generator
from flsel.selector import Need, Plan, Updates
from flsel.selectors.fedpns import FedPNS, shifted

CASES = json.loads((Path(__file__).parents[1] / "golden" / "fedpns_probability.json").read_text())["cases"]


class Server:
    """Answers the server's loss from a function of the model and keeps the models."""

    def __init__(self, loss=lambda w: 1.0):
        self.loss, self.models = loss, []

    def server_loss(self, at):
        self.models.append(at["w"])
        return self.loss(at["w"])


def now(clients, clients_per_round=None, *, server=None, w=None, **changes):
    answers = server or Server()
    needs = Need.DELTAS | Need.SERVER_LOSS
    plain = view([5] * clients, clients_per_round or clients, needs=needs, answers=answers, **changes)
    return replace(plain, params={"w": torch.zeros(3) if w is None else w})


def returned(deltas, clients=None, steps=None):
    clients = range(len(deltas)) if clients is None else clients
    return Updates(
        plan=Plan.star(clients),
        sizes=torch.full((len(deltas),), 5),
        steps=torch.tensor(steps or [1] * len(deltas)),
        needs=Need.DELTAS,
        answers={"deltas": {"w": torch.as_tensor(deltas)}},
    )


def started(selector, clients):
    selector.reset(torch.full((clients,), 5), 2)
    return selector


def adverse(count=10, against=(3,)):
    deltas = torch.tensor([[1.0, 1.0, 1.0]]).repeat(count, 1)
    deltas[list(against)] = -3.0
    return deltas


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_probabilities_of_the_reference(case):
    selector = started(FedPNS(case["alpha"], case["beta"]), 20)
    labelled = case["labelled"]
    selector.probability_ = torch.tensor(case["p_before"], dtype=torch.float64)
    counts = {
        key: torch.tensor([case[key][str(k)] for k in range(20)])
        for key in ("selected_count", "labelled_count")
    }
    # The counts of the case include the present round: select has counted those chosen.
    participants = torch.tensor(case["participants"])
    selector.chosen_ = counts["selected_count"].clone()
    selector.adverse_ = torch.tensor(labelled, dtype=torch.int64)
    selector.labelled_ = counts["labelled_count"].index_add(
        0, selector.adverse_, -torch.ones_like(selector.adverse_)
    )
    selector.observe(now(20), returned(torch.zeros(len(participants), 3), participants), torch.zeros(1))
    expected = torch.tensor(case["p_after"], dtype=torch.float64)
    torch.testing.assert_close(selector.probability_, expected, atol=1e-12, rtol=0)
    assert torch.equal(selector.labelled_, counts["labelled_count"])


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from([0.0, 0.01, 0.05]))
def test_probabilities_stay_probabilities(seed, clients, p_min):
    rng = generator(seed, "test")
    p = torch.full((clients,), 1.0 / clients, dtype=torch.float64)
    for _ in range(20):
        labelled = torch.from_numpy(rng.permutation(clients)[: rng.integers(0, clients + 1)])
        before = p
        p = shifted(p, labelled, torch.from_numpy(rng.random(len(labelled))), p_min=p_min)
        assert float(p.sum()) == pytest.approx(1.0, abs=1e-12)
        assert bool((p >= min(p_min, 1 / clients) - 1e-12).all())
        others = torch.ones(clients, dtype=torch.bool).index_fill(0, labelled, False)
        assert bool((p[others] >= before[others] - 1e-15).all())
        if len(labelled) == clients:
            assert torch.equal(p, before)


def test_the_draw_is_successive_sampling_by_probability():
    p = [0.4, 0.3, 0.2, 0.1]
    selector = started(FedPNS(), 4)
    selector.probability_ = torch.tensor(p, dtype=torch.float64)
    assert_frequencies(lambda seed: chosen(selector.select(now(4, 2, seed=seed))), inclusion(p, 2))
    without = inclusion([0.4, 0.2, 0.1], 2)
    chance = [without[0], 0.0, without[1], without[2]]
    assert_frequencies(lambda seed: chosen(selector.select(now(4, 2, seed=seed, absent=[1]))), chance)
    assert selector.probability_.tolist() == p


def test_clients_of_probability_zero_only_fill_up():
    selector = started(FedPNS(), 5)
    selector.probability_ = torch.tensor([0.5, 0.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    assert_frequencies(
        lambda seed: chosen(selector.select(now(5, 3, seed=seed))), [1.0, 1 / 3, 1.0, 1 / 3, 1 / 3]
    )
    assert chosen(selector.select(now(5, 3, absent=[0, 2, 4]))) in ([1, 3], [3, 1])


def test_a_client_labelled_at_first_sight_is_out():
    selector = started(FedPNS(), 20)
    current, back = now(20, 10), returned(adverse())
    weights = selector.weigh(current, back)
    assert weights.tolist() == [1 / 9 if k != 3 else 0.0 for k in range(10)]
    selector.observe(current, back, weights)
    assert selector.probability_[3] == 0.0
    assert selector.probability_[19] == pytest.approx(0.05 + 0.05 / 19)


def test_the_loss_check_compares_the_two_mean_models():
    w = torch.tensor([1.0, 2.0, 3.0])
    server = Server(lambda model: float(model.sum()))
    selector, deltas = started(FedPNS(), 10), adverse()
    # Without client 3 the model moves up, and so does this loss: it is labelled, but stays.
    weights = selector.weigh(now(10, server=server, w=w), returned(deltas))
    assert weights.tolist() == [0.1] * 10
    assert selector.adverse_.tolist() == [3]
    torch.testing.assert_close(server.models[0], w + deltas.mean(0))
    torch.testing.assert_close(server.models[1], w + torch.cat([deltas[:3], deltas[4:]]).mean(0))
    assert w.tolist() == [1.0, 2.0, 3.0]
    weights = selector.weigh(now(10, server=Server(lambda model: -float(model.sum())), w=w), returned(deltas))
    assert weights[3] == 0.0


@pytest.mark.parametrize(
    ("v", "count", "survivors"), [(0.7, 10, 7), (0.8, 10, 8), (1.0, 10, 10), (0.7, 30, 21)]
)
def test_a_share_always_survives(v, count, survivors):
    deltas = torch.from_numpy(generator(0, "test").normal(size=(count, 30)))
    server = Server()
    selector = started(FedPNS(v=v, expectation="mean"), count)
    weights = selector.weigh(now(count, server=server, w=torch.zeros(30).double()), returned(deltas))
    assert int((weights > 0).sum()) == survivors
    assert float(weights.sum()) == pytest.approx(1.0)
    assert len(server.models) == (count - survivors + 1 if survivors < count else 0)


def test_updates_are_compared_per_step():
    deltas = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [1.0, 0, 0], [10.0, 0, 0]])
    selector = started(FedPNS(v=0.5), 4)
    selector.weigh(now(4), returned(deltas, steps=[1, 1, 1, 10]))
    assert selector.adverse_.tolist() == []
    selector.weigh(now(4), returned(deltas))
    assert selector.adverse_.tolist() == [0, 1]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_updates_that_are_not_finite_weigh_nothing_and_are_not_labelled(poison):
    deltas = adverse()
    deltas[[0, 5], 1] = poison
    selector = started(FedPNS(), 10)
    weights = selector.weigh(now(10), returned(deltas))
    assert weights.tolist() == [0.0 if k in (0, 3, 5) else 1 / 7 for k in range(10)]
    assert selector.adverse_.tolist() == [3]
    lost = selector.weigh(now(10), returned(torch.full((10, 3), poison)))
    assert lost.tolist() == [0.0] * 10
    assert selector.adverse_.tolist() == []


def test_one_participant_is_never_labelled():
    selector, back = started(FedPNS(v=0.1, expectation="mean"), 4), returned([[1.0, 2.0, 3.0]], [2])
    assert selector.weigh(now(4), back).tolist() == [1.0]
    selector.observe(now(4), back, torch.ones(1))
    assert selector.probability_.tolist() == [0.25] * 4


def test_a_participation_counts_even_if_its_update_is_dropped():
    selector, four = started(FedPNS(), 4), adverse(4)
    for round in range(3):
        drawn = chosen(selector.select(now(4, seed=round)))
        kept = [k for k in sorted(drawn) if round == 2 or k != 3]  # Client 3's first two updates are lost.
        back = returned(four[kept], kept)
        selector.observe(now(4), back, selector.weigh(now(4), back))
    assert selector.chosen_.tolist() == [3, 3, 3, 3]
    assert selector.labelled_.tolist() == [0, 0, 0, 1]
    # One label in three participations, not in one: it keeps a part of its probability.
    lost = (1 / 3 + 0.7) ** 2
    assert lost > 1
    assert selector.probability_[3] == 0


def test_a_floor_that_no_distribution_can_have():
    with pytest.raises(UserError, match=r"p_min must be at most 1/20 for 20 clients, got 0\.06"):
        started(FedPNS(p_min=0.06), 20)


def test_many_clients():
    selector = started(FedPNS(expectation="mean"), 100_000)
    deltas = torch.from_numpy(generator(0, "test").normal(size=(100, 7850)).astype(np.float32))
    current = now(100_000, 100, w=torch.zeros(7850))
    back = returned(deltas, chosen(selector.select(current)))
    selector.observe(current, back, selector.weigh(current, back))
