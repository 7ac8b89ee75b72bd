"""OSMD: the projection against bisection, no bias, one step by hand, and the optimum of fixed updates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_views import chosen, view

from flsel.selector import Need, Plan, Updates
from flsel.selectors.osmd import OSMD, experts, floored

SIZES = [10, 2, 4, 20, 4, 8]
SHARE = np.array(SIZES) / sum(SIZES)
NORMS = np.array([1.0, 30.0, 2.0, 1.0, 4.0, 0.5])
ROUNDS = 3000


def returned(cohort: list[int]) -> Updates:
    return Updates(
        plan=Plan.star(cohort),
        sizes=torch.tensor([SIZES[k] for k in cohort]),
        steps=torch.ones(len(cohort), dtype=torch.int64),
        needs=Need.DELTAS,
        answers={"deltas": {"w": torch.tensor([[NORMS[k], 0.0] for k in cohort], dtype=torch.float64)}},
    )


def shown(k: int, *, seed: int = 0, absent: tuple[int, ...] = ()):
    return replace(view(SIZES, k, seed=seed, absent=absent, needs=Need.DELTAS), rounds=ROUNDS)


def taught(selector: OSMD, rounds: int, k: int = 2) -> OSMD:
    selector.reset(torch.tensor(SIZES), 2)
    for seed in range(rounds):
        seen = shown(k, seed=seed)
        back = returned(chosen(selector.select(seen)))
        selector.observe(seen, back, selector.weigh(seen, back))
    return selector


@given(st.lists(st.floats(-300, 300), min_size=1, max_size=9).map(np.array), st.floats(0.0, 1.0))
def test_the_projection_is_the_one_found_by_bisection(log_weights, alpha):
    floor = alpha / len(log_weights)
    found = floored(log_weights, floor)
    assert found.sum() == pytest.approx(1.0)
    assert (found >= floor * (1 - 1e-9)).all()
    low, high = -1000.0, 1000.0
    for _ in range(200):
        shift = (low + high) / 2
        total = np.maximum(np.exp(np.minimum(log_weights + shift, 1.0)), floor).sum()
        low, high = (shift, high) if total < 1 else (low, shift)
    np.testing.assert_allclose(found, np.maximum(np.exp(log_weights + low), floor), atol=1e-9)


@pytest.mark.parametrize("absent", [(), (3, 4)])
def test_weights_have_no_bias_whatever_was_learnt(absent):
    learnt, times = taught(OSMD(eta=300.0), 40), 1500
    able = np.where(np.isin(np.arange(6), absent), 0, SIZES)
    weights = np.zeros((times, 6))
    for seed in range(times):
        seen = shown(2, seed=seed, absent=absent)
        cohort = chosen(learnt.select(seen))
        assert len(cohort) == 2
        np.add.at(weights[seed], cohort, learnt.weigh(seen, returned(cohort)).numpy())
    error = 5 * weights.std(axis=0) / math.sqrt(times)
    assert (np.abs(weights.mean(axis=0) - able / able.sum()) <= error + 1e-12).all()
    assert learnt.drawn_.numpy().std() > 0.05


def test_one_step_by_hand():
    """From q = 1/6: two draws, floor 0.4/6, the rest in proportion to exp(eta a / (K^2 q^3))."""
    selector = OSMD(0.4, eta=3000.0)
    selector.reset(torch.tensor(SIZES), 2)
    seen = shown(2, seed=1)
    cohort = chosen(selector.select(seen))
    back = returned(cohort)
    selector.observe(seen, back, selector.weigh(seen, back))
    a = (SHARE * NORMS) ** 2
    unit = 4 * 0.4**3 / (6**3 * max(a[k] for k in cohort)) * math.sqrt(math.log(6) / (2 * ROUNDS))
    log_weights = np.zeros(6)
    for k in cohort:
        log_weights[k] += 3000 * unit * a[k] / (4 * (1 / 6) ** 3)
    assert log_weights.max() > 0.1
    np.testing.assert_allclose(selector.expert_[0], floored(log_weights, 0.4 / 6))


def test_where_updates_do_not_change_the_variance_approaches_the_optimum():
    """The optimum is max(alpha/N, c share norm), by the projection of its logarithm."""
    a = (SHARE * NORMS) ** 2
    best = (a / floored(0.5 * np.log(a), 0.4 / 6)).sum()
    fixed, adaptive = taught(OSMD(eta=100.0), ROUNDS), taught(OSMD(), ROUNDS)
    for selector in (fixed, adaptive):
        selector.select(shown(2))
        variance = (a / selector.drawn_.numpy()).sum()
        assert variance < 1.02 * best < 0.6 * (a * 6).sum()
    assert adaptive.trust_.sum() == pytest.approx(1.0)


def test_rates_cover_what_the_theory_asks_for():
    """The largest of them, 2^(E - 1) units, is where the comparison may change in every round."""
    for clients, rounds in ((2, 1), (6, 100), (100, 500), (1000, 10_000)):
        spread = 1 + 4 * (rounds - 1) * math.log(clients / 0.4) / math.log(clients)
        assert 2 ** (experts(clients, rounds, 0.4) - 1) >= math.sqrt(spread)
        assert 2 ** (experts(clients, rounds, 0.4) - 2) < math.sqrt(spread)
    assert experts(1, 100, 0.4) == 1
