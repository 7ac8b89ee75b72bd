"""K-Vib: inclusion probabilities in frequencies, no bias, and the optimum where updates do not change."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from plain_views import assert_frequencies, chosen, view

from flsel.rng import generator
from flsel.selector import Need, Plan, Updates
from flsel.selectors._inclusion import systematic
from flsel.selectors.kvib import KVib

SIZES = [10, 2, 4, 20, 4, 8]
SHARE = np.array(SIZES) / sum(SIZES)
NORMS = np.array([1.0, 30.0, 2.0, 1.0, 4.0, 0.5])


def returned(cohort: list[int]) -> Updates:
    return Updates(
        plan=Plan.star(cohort),
        sizes=torch.tensor([SIZES[k] for k in cohort]),
        steps=torch.ones(len(cohort), dtype=torch.int64),
        needs=Need.DELTAS,
        answers={"deltas": {"w": torch.tensor([[NORMS[k], 0.0] for k in cohort], dtype=torch.float64)}},
    )


def shown(k: int, *, seed: int = 0, rounds: int = 1000, absent: tuple[int, ...] = ()):
    return replace(view(SIZES, k, seed=seed, absent=absent, needs=Need.DELTAS), rounds=rounds)


def taught(rounds: int, k: int = 2) -> KVib:
    selector = KVib()
    selector.reset(torch.tensor(SIZES), 2)
    for seed in range(rounds):
        seen = shown(k, seed=seed)
        back = returned(chosen(selector.select(seen)))
        selector.observe(seen, back, selector.weigh(seen, back))
    return selector


def twin(selector: KVib) -> KVib:
    other = KVib()
    other.reset(torch.tensor(SIZES), 2)
    other.load_state_dict(selector.state_dict())
    return other


@pytest.mark.parametrize("chance", [[0.5, 0.5, 1.0, 0.25, 0.75], [0.1] * 10, [1.0, 1.0], [0.2, 0.9, 0.9]])
def test_a_systematic_sample_has_its_probabilities_and_its_size(chance):
    draws = [systematic(np.array(chance), generator(seed, "draw")) for seed in range(2000)]
    assert {len(set(draw.tolist())) for draw in draws} == {round(sum(chance))}
    assert_frequencies(lambda seed: draws[seed].tolist(), chance, times=2000)


def test_the_first_cohort_is_uniform_and_weights_have_no_bias():
    assert_frequencies(lambda seed: chosen(twin(taught(0)).select(shown(2, seed=seed))), [1 / 3] * 6)


@pytest.mark.parametrize("absent", [(), (3, 4)])
def test_weights_have_no_bias_whatever_was_learnt(absent):
    learnt, total, times = taught(60), np.zeros(6), 1200
    squares = np.zeros(6)
    for seed in range(times):
        selector, seen = twin(learnt), shown(2, seed=seed, absent=absent)
        cohort = chosen(selector.select(seen))
        assert len(cohort) == 2
        weights = np.zeros(6)
        weights[cohort] = selector.weigh(seen, returned(cohort)).numpy()
        total, squares = total + weights, squares + weights**2
    able = np.where(np.isin(np.arange(6), absent), 0, SIZES)
    mean = total / times
    error = 5 * np.sqrt(np.maximum(squares / times - mean**2, 0) / times)
    assert (np.abs(mean - able / able.sum()) <= error + 1e-12).all()


def test_feedback_is_cumulated_by_its_formula():
    selector = KVib(gamma=0.5, theta=0.25)
    selector.reset(torch.tensor(SIZES), 2)
    seen = shown(2)
    back = returned(chosen(selector.select(seen)))
    selector.observe(seen, back, selector.weigh(seen, back))
    cumulated = np.zeros(6)
    cohort = back.clients.tolist()
    cumulated[cohort] = (SHARE * NORMS)[cohort] ** 2 / (2 / 6)
    np.testing.assert_allclose(selector.feedback_, cumulated)
    root = np.sqrt(cumulated + 0.5 * 6 / (0.25 * 2))
    assert root.max() < root.sum() / 2  # Nobody is certain.
    selector.select(seen)
    np.testing.assert_allclose(selector.chance_, 0.75 * 2 * root / root.sum() + 0.25 * 2 / 6)


def test_where_updates_do_not_change_the_probabilities_approach_the_optimum():
    lengths = SHARE * NORMS
    # 2 * 30 * 2/48 is above half of the sum of the others: that client is certain.
    assert lengths[1] > lengths.sum() / 2
    rest = np.delete(np.arange(6), 1)
    optimum = np.ones(6)
    optimum[rest] = lengths[rest] / lengths[rest].sum()
    theta = (6 / (1000 * 2)) ** (1 / 3)
    selector = taught(4000)
    np.testing.assert_allclose(selector.chance_, (1 - theta) * optimum + theta / 3, atol=0.04)
    variance = (lengths**2 / selector.chance_.numpy()).sum()
    assert variance < 0.6 * (lengths**2 * 3).sum()


def test_automatic_regularisation_is_the_first_cohorts_mean():
    selector = KVib()
    selector.reset(torch.tensor(SIZES), 2)
    seen = shown(3)
    back = returned(chosen(selector.select(seen)))
    selector.observe(seen, back, selector.weigh(seen, back))
    assert math.isclose(selector.gamma_, np.mean((SHARE * NORMS)[back.clients.numpy()] ** 2))
