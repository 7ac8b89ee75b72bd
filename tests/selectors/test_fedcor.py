"""FedCor: the timeline of warm-up and rehearsals, history, annealing, absences and its choice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from plain_views import chosen, view

from flsel.metrics import Ledger
from flsel.selector import Need
from flsel.selectors import _gp
from flsel.selectors.fedcor import FedCor

SIZES = [6, 4, 5, 5, 0, 10]
NEEDS = Need.LOSSES | Need.SHADOW


class Clients:
    """Client k's loss is (w - k)^2 / 10, and training moves w to k; notes what was asked."""

    def __init__(self, sizes=SIZES, absent=(), poison=None):
        self.sizes, self.absent, self.poison = sizes, absent, poison or {}
        self.w = torch.tensor([2.0])
        self.asked: list[tuple[str, list[int]]] = []

    def losses(self, clients, at):
        self.asked.append(("losses", list(clients)))
        w = self.w if at is None else at["w"]
        loss = (w - torch.tensor(clients)).double().square() / 10
        for row, k in enumerate(clients):
            loss[row] = math.nan if self.sizes[k] == 0 else self.poison.get(k, loss[row])
        return loss

    def shadow(self, clients):
        assert not set(clients) & set(self.absent)
        self.asked.append(("shadow", list(clients)))
        ends = torch.tensor([[self.poison.get(k, float(k))] for k in clients])
        return {"w": ends}

    def view(self, round, clients_per_round, *, seed=0):
        now = view(
            self.sizes, clients_per_round, seed=seed + round, absent=self.absent, needs=NEEDS, answers=self
        )
        return replace(now, round=round, rounds=100, params={"w": self.w}, ledger=Ledger())


def started(selector, sizes=SIZES):
    selector.reset(torch.tensor(sizes), 2)
    return selector


def run_rounds(selector, clients, rounds, clients_per_round=2):
    """Execute rounds; return per round what was asked, and the cohorts."""
    asked, cohorts = [], []
    for round in range(rounds):
        clients.asked.clear()
        cohorts.append(chosen(selector.select(clients.view(round, clients_per_round))))
        asked.append([kind for kind, _ in clients.asked])
        clients.w = torch.tensor([float(np.mean(cohorts[-1]))])
    return asked, cohorts


@pytest.mark.parametrize(
    ("variant", "warmup", "delta_t", "follows", "rehearses"),
    [
        ("paper", 3, 2, [0, 1, 2, 3], [4, 6, 8]),
        ("paper", 4, 2, [0, 1, 2, 3, 4], [4, 6, 8]),
        ("paper", 0, 4, [], [0, 4, 8]),
        ("paper", 2, 100, [0, 1, 2], []),
        ("reference", 3, 2, [0, 1, 2, 3, 4], [5, 7, 9]),
        ("reference", 4, 4, [0, 1, 2, 3, 4, 5], [9]),
    ],
)
def test_who_is_asked_when(variant, warmup, delta_t, follows, rehearses):
    selector = started(FedCor(warmup=warmup, delta_t=delta_t, samples=2, steps=1, variant=variant))
    asked, _ = run_rounds(selector, Clients(), 10)
    for round, kinds in enumerate(asked):
        # The losses of the present model are asked once, whatever they serve.
        expected = ["losses"] if round in follows or round in rehearses else []
        expected += ["shadow", "losses"] * 2 if round in rehearses else []
        assert kinds == expected, round


@pytest.mark.parametrize(("variant", "fits"), [("paper", [1, 2, 3, 4, 6]), ("reference", [4, 5, 7])])
def test_when_the_embedding_learns(variant, fits, monkeypatch):
    steps = []
    monkeypatch.setattr(_gp, "fit", lambda embedding, samples, **how: steps.append(how["steps"]) or embedding)
    selector, clients = started(FedCor(warmup=3, delta_t=2, steps=7, variant=variant)), Clients()
    for round in range(8):
        steps.clear()
        selector.select(clients.view(round, 2))
        first = variant == "reference" and round == 4
        assert steps == ([70] if first else [7] if round in fits else []), round


def test_samples_are_loss_changes():
    selector, clients = started(FedCor(warmup=2, delta_t=2, steps=1)), Clients()
    path = []
    for round in range(3):
        path.append(float(clients.w))
        selector.select(clients.view(round, 2))
        clients.w = clients.w + 1.0
    shadowed = next(cohort for kind, cohort in clients.asked if kind == "shadow")
    steps = [(path[0], path[1]), (path[1], path[2]), (path[2], float(np.mean(shadowed)))]
    k = torch.arange(6).double()
    expected = torch.stack(
        [(after - k).square() / 10 - (before - k).square() / 10 for before, after in steps]
    )
    expected[:, 4] = math.nan  # No examples.
    assert selector.rounds_.tolist() == [0, 1, 2]
    torch.testing.assert_close(selector.changes_, expected, equal_nan=True, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("history", "warm", "later"),
    [(None, list(range(2, 13)), [13, 16]), (3, [9, 10, 11, 12], [13, 16]), (0, [12], [16])],
)
def test_history_is_counted_in_rounds(history, warm, later):
    selector, clients = started(FedCor(warmup=14, delta_t=4, steps=1, history=history)), Clients()
    run_rounds(selector, clients, 14)
    assert selector.rounds_.tolist() == warm
    for round in range(14, 17):
        selector.select(clients.view(round, 2))
    assert selector.rounds_.tolist() == ([12, 13, 16] if history is None else later)


def test_weights_fall_with_age(monkeypatch):
    seen = []
    monkeypatch.setattr(_gp, "fit", lambda embedding, samples, **how: seen.append(samples) or embedding)
    selector = started(FedCor(warmup=2, delta_t=4, theta=0.5, history=10))
    run_rounds(selector, Clients(), 5)
    assert seen[-1].weights.tolist() == [0.5**4, 0.5**3, 1.0]
    reference = started(FedCor(warmup=1, delta_t=4, theta=0.5, history=10, variant="reference"))
    run_rounds(reference, Clients(), 3)
    centred = (seen[-1].weights[:, None] * seen[-1].changes).sum(0)
    np.testing.assert_allclose(centred, np.zeros(6), atol=1e-12)


def test_annealing_is_reset_by_rehearsals_and_untouched_in_warmup():
    selector, clients = started(FedCor(beta=0.5, warmup=3, delta_t=3, steps=1)), Clients()
    for round in range(3):
        selector.select(clients.view(round, 2))
        assert selector.alpha_.tolist() == [1.0] * 6
    count = np.zeros(6)
    for round in range(3, 10):
        if round % 3 == 0:
            count[:] = 0
        count[chosen(selector.select(clients.view(round, 2)))] += 1
        assert selector.alpha_.tolist() == (0.5**count).tolist()


def test_warmup_is_uniform():
    hits = np.zeros(6)
    for seed in range(400):
        hits[chosen(started(FedCor()).select(Clients().view(0, 2, seed=seed)))] += 1
    assert hits[4] == 0  # No examples.
    np.testing.assert_allclose(hits[[0, 1, 2, 3, 5]] / 400, 0.4, atol=0.13)


def test_the_choice_is_algorithm_1():
    selector, clients = started(FedCor(warmup=0, delta_t=100)), Clients()
    selector.embedding_ = torch.tensor(
        [[1.0, 0.9, 0.0, 0.1, 5.0, 0.2], [0.0, 0.2, 1.0, 0.3, 0.0, 0.1]]
    ).double()
    expected = _gp.greedy_by_posterior(
        selector.embedding_.numpy(),
        0.01,
        share=np.array(SIZES) / 30,
        alpha=np.ones(6),
        allowed=np.array(SIZES) > 0,
        count=3,
    )
    assert chosen(selector.select(clients.view(1, 3))) == expected
    again = chosen(selector.select(clients.view(2, 3)))
    assert len(set(again)) == 3
    absent = Clients(absent=expected[:1])
    assert not set(chosen(selector.select(absent.view(3, 3)))) & set(expected[:1])


def test_equal_embeddings_are_filled_up_at_random():
    selector, clients = started(FedCor(warmup=0, delta_t=100, noise=1e-9), [5] * 6), Clients([5] * 6)
    selector.embedding_ = torch.ones(2, 6).double()
    cohorts = {tuple(chosen(selector.select(clients.view(1, 3, seed=seed)))) for seed in range(20)}
    assert len(cohorts) > 5
    assert all(len(set(cohort)) == 3 for cohort in cohorts)


@pytest.mark.parametrize(
    ("absent", "clients_per_round", "size"), [((0, 1, 2), 5, 2), ((0, 1, 2, 3, 5), 3, 1), ((), 6, 5)]
)
def test_small_pools(absent, clients_per_round, size):
    selector, clients = started(FedCor(warmup=1, delta_t=2, steps=1)), Clients(absent=absent)
    _, cohorts = run_rounds(selector, clients, 6, clients_per_round)
    assert all(len(set(cohort)) == len(cohort) == size for cohort in cohorts)
    assert not set().union(*cohorts) & set(absent)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_reports_that_are_no_number_are_left_out(poison):
    selector, clients = started(FedCor(warmup=2, delta_t=2, steps=5)), Clients(poison={0: poison, 5: poison})
    run_rounds(selector, clients, 5, clients_per_round=3)
    silent = [0, 4, 5]
    assert selector.changes_.isnan().all(0).nonzero().flatten().tolist() == silent
    everyone = Clients(poison=dict.fromkeys(range(6), poison))
    lost = started(FedCor(warmup=2, delta_t=2, steps=5))
    run_rounds(lost, everyone, 5)
    assert len(lost.changes_) == 0
    assert bool(lost.embedding_.isfinite().all())


@pytest.mark.parametrize(("clients", "clients_per_round"), [(10_000, 100), (100_000, 10)])
def test_many_clients(clients, clients_per_round):
    selector = started(FedCor(warmup=0, delta_t=100), [3] * clients)
    now = Clients([3] * clients).view(1, clients_per_round)
    assert len(set(selector.select(now).paths)) == clients_per_round
