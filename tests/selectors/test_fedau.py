"""FedAU: gaps of a written history, weights without bias in the long run, and the selector inside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_views import Losses, chosen, updates, view
from runs import built, differ_when_resumed, settings

from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.rng import generator
from flsel.selector import Need
from flsel.selectors import AFL, FedAU, FedCat, OptimalSampling, PowD

SIZES = [3, 1, 2, 4]
SHARE = np.array(SIZES) / 10


def seen(cohort: list[int], round: int = 0):
    shown = view(SIZES, len(cohort), seed=round, absent=[k for k in range(4) if k not in cohort])
    return replace(shown, round=round)


def weights(selector: FedAU, cohort: list[int], round: int) -> dict[int, float]:
    shown = seen(cohort, round)
    order = chosen(selector.select(shown))
    back = updates(order, SIZES)
    found = selector.weigh(shown, back)
    selector.observe(shown, back, found)
    return dict(zip(order, found.tolist(), strict=True))


def by_history(history: list[list[int]], client: int, cutoff: int) -> list[float]:
    """Mean of the gaps that were closed before each participation, 1 where there is none."""
    factors, gaps, away = [], [], 0
    for cohort in history:
        away += 1
        if client in cohort:
            factors.append(sum(gaps) / len(gaps) if gaps else 1.0)
        if client in cohort or away == cutoff:
            gaps.append(away)
            away = 0
    return factors


@pytest.mark.parametrize("cutoff", [3, 50])
@pytest.mark.parametrize("shares", ["size", "equal"])
def test_weights_are_shares_times_the_mean_gaps_so_far(cutoff, shares):
    rng = generator(0, "history")
    history = [np.flatnonzero(rng.random(4) < (0.9, 0.3, 0.1, 0.5)).tolist() for _ in range(60)]
    selector = FedAU(cutoff=cutoff, shares=shares)
    selector.reset(torch.tensor(SIZES), 2)
    found: dict[int, list[float]] = {k: [] for k in range(4)}
    for round, cohort in enumerate(history):
        for client, weight in weights(selector, cohort, round).items() if cohort else ():
            found[client].append(weight / (SHARE[client] if shares == "size" else 0.25))
    for client in range(4):
        assert found[client] == pytest.approx(by_history(history, client, cutoff))


def test_weights_have_no_bias_in_the_long_run():
    selector, rng, rates = FedAU(), generator(1, "presence"), np.array([0.8, 0.5, 0.2, 0.4])
    selector.reset(torch.tensor(SIZES), 2)
    total, rounds = np.zeros(4), 0
    for seed in range(6000):
        cohort = np.flatnonzero(rng.random(4) < rates).tolist()
        if not cohort:
            cohort = [0]
        for client, weight in weights(selector, cohort, seed).items():
            total[client] += weight * (seed >= 1000)
        rounds += seed >= 1000
    np.testing.assert_allclose(total / rounds, SHARE, rtol=0.08)


def test_a_client_on_several_paths_counts_once():
    selector = FedAU()
    selector.reset(torch.tensor(SIZES), 2)
    selector.select(seen([0, 1, 2]))
    found = selector.weigh(seen([0, 1, 2]), updates([1, 0, 1], SIZES))
    np.testing.assert_allclose(found, [0.05, 0.3, 0.05])


def test_the_inner_selector_chooses_learns_and_keeps_its_state_apart():
    inner = PowD(4)
    losses = Losses([0.1, 5.0, 3.0, 0.2])
    shown = view(SIZES, 2, needs=Need.LOSSES, answers=losses)
    selector = FedAU(inner)
    assert selector.needs == Need.LOSSES
    selector.reset(torch.tensor(SIZES), 2)
    assert chosen(selector.select(shown)) == [1, 2]
    learning = FedAU(AFL())
    learning.reset(torch.tensor(SIZES), 2)
    weighed = seen([0, 2])
    order = chosen(learning.select(weighed))
    back = updates(order, SIZES, [1.0] * 2)
    learning.observe(weighed, back, learning.weigh(weighed, back))
    assert not learning.inner_["value_"][[0, 2]].isnan().any()
    assert learning.selector.state_dict() == {}


def test_a_resumed_run_goes_the_same_way(tmp_path: Path):
    assert differ_when_resumed(settings(tmp_path, selector=FedAU(AFL())), range(6)) == []


def test_selectors_that_cannot_be_weighed_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="must have every participant send its update, got OptimalSampling"):
        built(settings(tmp_path, selector=FedAU(OptimalSampling())))
    run = built(settings(tmp_path, selector=FedAU(FedCat())))
    with pytest.raises(UserError, match="must have plans of one hop, got FedCat, which chains 3 clients"):
        run.server.step()
    with pytest.raises(UserError, match=r"selector.d must be at least"):
        built(settings(tmp_path, selector=FedAU(PowD(1))))


@pytest.mark.parametrize(
    "named",
    [
        "PowD",
        "flsel.selectors.powd.PowD",
        {"class_path": "PowD", "init_args": {"d": 30}},
        "{class_path: PowD}",
    ],
)
def test_the_inner_selector_is_named_as_any_other(named):
    config = RunConfig.from_dict({"selector": {"class_path": "FedAU", "init_args": {"selector": named}}}, {})
    assert isinstance(config.selector, FedAU)
    assert isinstance(config.selector.selector, PowD)
    assert config.selector.selector.d == (30 if isinstance(named, dict) else None)
    again = RunConfig.from_dict(config.to_dict(), {})
    assert again.to_dict() == config.to_dict()


def test_an_inner_selector_that_is_none_is_refused():
    with pytest.raises(UserError, match=r"selector.selector has no class FedAg; did you mean"):
        RunConfig.from_dict({"selector": {"class_path": "FedAU", "init_args": {"selector": "FedAg"}}}, {})
    with pytest.raises(UserError, match=r"selector.selector.d must be a whole number >= 1"):
        RunConfig.from_dict(
            {
                "selector": {
                    "class_path": "FedAU",
                    "init_args": {"selector": {"class_path": "PowD", "init_args": {"d": 0}}},
                }
            },
            {},
        )
