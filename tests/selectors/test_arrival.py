"""Weights where fewer clients arrive than were chosen: their sums are those of rounds in which all arrive."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, settings

from flsel import selectors
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.config.simulated_time import TimeConfig
from flsel.devices import Equal, LogNormal
from flsel.selector import Need, Plan, Updates
from flsel.selectors import F3AST, MD, OSMD, FedAU, KVib, OptimalSampling, PowD, Uniform, __all__

ROUNDS = 60
# These are asked for many rounds, with their defaults.
LONGER = ("F3AST", "FedAU", "KVib", "MD", "OSMD")
LATE = (TimeConfig(over_selection=1.3), TimeConfig(deadline=0.45))


def test_weights_that_are_passed_on_are_unbiased_if_chance_says_who_arrives():
    cohort, weights = (4, 0, 2, 2, 5), torch.tensor([0.4, 9.0, 0.1, 9.0, 0.7, 0.2], dtype=torch.float64)
    for arrive in range(1, 6):
        kept = list(combinations(range(5), arrive))
        mean = torch.zeros(6, dtype=torch.float64)
        for rows in kept:
            plan, none = Plan.star([cohort[row] for row in rows]), torch.zeros(arrive, dtype=torch.int64)
            updates = Updates(plan, none, none, Need.NONE, {}, asked=torch.tensor(cohort))
            mean.index_add_(0, updates.clients, updates.passed_on(weights) / len(kept))
        assert torch.allclose(mean, weights * torch.bincount(torch.tensor(cohort), minlength=6))


def mean_sum(folder: Path, selector: Any, rules: TimeConfig, rounds: int = ROUNDS) -> float:
    """Mean of the sums of weights of a run's rounds, in which chance says who is late."""
    config = settings(
        folder,
        selector=selector,
        rounds=rounds,
        clients=20,
        clients_per_round=5,
        devices=Equal(jitter=1.0),
        time=rules,
        local=LocalConfig(batch_size=5, steps=1, backend="sequential"),
        evaluation=EvaluationConfig(every=rounds),
    )
    server = built(config).server
    return float(np.mean([server.step().outcome.weights.sum().item() for _ in range(rounds)]))


@pytest.mark.parametrize(
    "selector",
    [F3AST(), F3AST(0.05), FedAU(), KVib(), OSMD(), MD(), OptimalSampling(), PowD(d=8), Uniform("scaled")],
)
def test_sums_of_weights_do_not_depend_on_who_arrives(selector, tmp_path):
    expected = mean_sum(tmp_path, selector, TimeConfig())
    for rules in LATE:
        assert mean_sum(tmp_path, selector, rules) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("name", sorted(set(__all__) - {*LONGER, "Complete", "FedCat"}))
def test_weights_of_every_other_selector_sum_as_without_deadlines(name, tmp_path):
    selector = getattr(selectors, name)
    made = selector(mean=3) if name == "OptimalSampling" else selector()
    expected = mean_sum(tmp_path, made, TimeConfig(), rounds=8)
    for rules in LATE:
        assert mean_sum(tmp_path, made, rules, rounds=8) == pytest.approx(expected, rel=0.3)


def test_fedau_counts_clients_whose_update_counts(tmp_path):
    config = settings(
        tmp_path, selector=FedAU(cutoff=1000), rounds=ROUNDS, clients=20, clients_per_round=5,
        devices=LogNormal(), time=TimeConfig(over_selection=1.6),
    )  # fmt: skip
    server = built(config).server
    arrivals = torch.zeros(20, dtype=torch.int64)
    for _ in range(ROUNDS):
        for path in server.step().outcome.plan.visits:
            arrivals[path[0]] += 1
    assert torch.equal(server.selector.gaps_, arrivals)
