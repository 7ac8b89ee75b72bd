"""Oort: published rules on known answers, and what the selector makes of reports."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_views import assert_frequencies, chosen, view

from flsel.selector import Late, Need, Plan, Updates, View
from flsel.selectors import _oort
from flsel.selectors.oort import Oort

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden/oort.json").read_text())
NEEDS = Need.SQUARED_LOSS | Need.DURATIONS


class Profiles:
    """Answers durations from a table."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.seconds = torch.tensor(seconds, dtype=torch.float64)

    def durations(self, clients: list[int]) -> torch.Tensor:
        return self.seconds[clients][:, None] * torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)


def now(
    selector: Oort, seconds: Sequence[float], k: int, *, round: int = 0, seed: int = 0, **more: Any
) -> View:
    sizes = more.pop("sizes", [10] * len(seconds))
    made = view(sizes, k, seed=seed, needs=selector.needs, answers=Profiles(seconds), **more)
    return replace(made, round=round)


def told(
    clients: Sequence[int], squared: Sequence[float], seconds: Sequence[float], late: Late | None = None
) -> Updates:
    return Updates(
        plan=Plan.star(clients),
        sizes=torch.full((len(clients),), 10),
        steps=torch.ones(len(clients), dtype=torch.int64),
        needs=NEEDS,
        answers={
            "squared_loss": torch.tensor(squared, dtype=torch.float64),
            "durations": torch.tensor(seconds, dtype=torch.float64),
        },
        late=late or Late.of({}),
    )


def fresh(clients: int, **arguments: Any) -> Oort:
    selector = Oort(**arguments)
    selector.reset(torch.full((clients,), 10), 2)
    return selector


def exact(value: Any) -> Any:
    return pytest.approx(value, abs=1e-9)


def test_utilities_match() -> None:
    for case in GOLDEN["statistical_utility"]:
        losses = np.array(case["losses"])
        found = _oort.utilities(np.array([case["size"]]), np.array([np.square(losses).mean()]))
        assert found == exact([case["utility"]])
    assert _oort.utilities(np.array([3]), np.array([3.0])) == exact([3 * math.sqrt(3)])


def test_preferred_durations_match() -> None:
    for case in GOLDEN["preferred_duration"]:
        for percent, expected in zip(case["percents"], case["T"], strict=True):
            assert _oort.preferred_duration(np.array(case["durations"]), percent) == float(expected)


def test_scores_match() -> None:
    for case in GOLDEN["scores"]:
        utility, durations = np.array(case["utilities"]), np.array(case["durations"])
        base = _oort.normalised(utility, case["clip_quantile"])
        bonus = _oort.staleness(case["round"], np.array(case["last_involved"]))
        factor = _oort.system(durations, float(case["T"]), case["alpha"])
        raw = _oort.clipped(utility, case["clip_quantile"])
        assert base == exact(case["normalised"])
        assert bonus == exact(case["staleness"])
        assert factor == exact(case["system"])
        assert (base + bonus) * factor == exact(case["scores_normalised"])
        assert (raw + bonus) * factor == exact(case["scores_raw"])


def test_pools_match_the_paper() -> None:
    for case in GOLDEN["pool"]:
        scores = np.array(case["scores"])
        pool = _oort.admitted(scores, case["k"], case["c"])
        assert sorted(pool.tolist()) == sorted(case["paper"]["pool"])


def test_exploration_and_split_match() -> None:
    (case,) = GOLDEN["exploration_factor"]
    for round, expected in zip(case["round"], case["paper"], strict=True):
        # The paper's last step passes the floor by a hundredth; this one ends there.
        found = _oort.epsilon(round, case["start"], case["decay"], case["floor"])
        assert found == exact(max(expected, case["floor"]))
    for case in GOLDEN["split"]:
        assert list(_oort.split(case["K"], case["epsilon"])) == case["oort_repo"]


def test_pacers_match() -> None:
    for case in GOLDEN["pacer"]:
        percent, seconds = case["percent_start"], case["T_start"]
        percents, preferred = [], []
        for count in range(1, len(case["history"]) + 1):
            history = case["history"][:count]
            percent = _oort.paced(percent, history, case["W"], case["percent_delta"])
            seconds = _oort.relaxed(seconds, history, case["W"], case["T_delta"])
            percents.append(percent)
            preferred.append(seconds)
        assert percents == case["repository_percent"]
        assert preferred == case["paper_T_every_round"]


def test_exploration_weights_match() -> None:
    for case in GOLDEN["exploration_weights"]:
        examples = np.minimum(case["sizes"], case["most_examples"])
        weights = examples * _oort.system(np.array(case["durations"]), case["T"], case["alpha"])
        assert weights == exact(case["weights"])
        order = _oort.explored(weights, case["count"], case["window"])
        assert order.tolist() == case["window_order"]
        assert weights[order] / weights[order].sum() == exact(case["first_draw"])


def test_blocked_clients_match() -> None:
    for case in GOLDEN["blacklist"]:
        assert _oort.blocked(np.array(case["counts"]), case["most"]).tolist() == case["blocked"]
    assert _oort.blocked(np.array([5, 9, 7, 8, 6, 1, 1, 1, 1, 1]), 4).tolist() == [1, 2, 3]


def test_exploitation_follows_the_published_trace() -> None:
    """The reference's call n comes after its round n - 1; it begins with an empty entry of its history."""
    for case in GOLDEN["trace_exploitation"]:
        percent, history = case["percent_start"], [0.0]
        durations = np.array(case["durations"])
        for number, expected in enumerate(case["rounds"], 1):
            percent = _oort.paced(percent, history, case["W"], case["percent_delta"])
            preferred = _oort.preferred_duration(durations, percent)
            utility = np.array(expected["utilities"])
            scores = _oort.normalised(utility, case["clip_quantile"])
            scores = scores + _oort.staleness(number, np.array(expected["last_involved"]))
            scores = scores * _oort.system(durations, preferred, case["alpha"])
            assert (percent, preferred) == (expected["percent"], expected["T"])
            assert scores == exact(expected["scores"])
            best = sorted(np.argsort(-scores)[: case["K"]].tolist())
            assert best == sorted(expected["picked"])
            reports = case["reports"][number + 1]
            history.append(float(np.mean([reports[client] for client in best])))


def test_nobody_is_known_at_first() -> None:
    """All places go to explorers: five times as many of the heaviest are drawn from, by weight."""
    seconds = [1.0, 1.0, 2.0, 4.0]
    selector = fresh(4, percentile=25.0)
    # Percentile 25 of (1, 1, 2, 4) is 1: weights 10, 10, 2.5, 0.625.
    weights = np.array([10, 10, 2.5, 0.625])
    assert_frequencies(lambda seed: chosen_of(selector, seconds, seed), weights / weights.sum(), 4000)


def chosen_of(selector: Oort, seconds: Sequence[float], seed: int) -> list[int]:
    return [path[0] for path in selector.select(now(selector, seconds, 1, seed=seed)).paths]


def test_known_clients_are_exploited_by_score() -> None:
    selector = fresh(6, exploration=1e-9, exploration_floor=0.0, cutoff=1.0)
    first = now(selector, [1.0] * 6, 6)
    selector.select(first)
    selector.observe(first, told(range(6), [1, 4, 9, 16, 25, 36], [1.0] * 6), torch.ones(6))
    assert selector.utility_.tolist() == exact([10, 20, 30, 40, 50, 60])
    plan = selector.select(now(selector, [1.0] * 6, 2, round=1))
    # Clipped at the largest, so the two largest utilities win.
    assert sorted(chosen(plan)) == [4, 5]


def test_slow_clients_lose() -> None:
    selector = fresh(4, exploration=1e-9, exploration_floor=0.0, cutoff=1.0, percentile=30.0)
    first = now(selector, [1.0] * 4, 4)
    selector.select(first)
    selector.observe(first, told(range(4), [4, 4, 9, 9], [1.0, 1.0, 1.0, 30.0]), torch.ones(4))
    assert chosen(selector.select(now(selector, [1.0] * 4, 1, round=1))) == [2]
    without = fresh(4, exploration=1e-9, exploration_floor=0.0, cutoff=1.0, penalty=0.0)
    assert without.needs == Need.SQUARED_LOSS


def test_late_clients_are_explored_with_the_mean_utility() -> None:
    selector = fresh(4)
    first = now(selector, [1.0] * 4, 3)
    selector.select(first)
    selector.observe(first, told([0, 1], [4, 16], [1.0, 2.0], Late.of({3: 9.0})), torch.ones(2))
    assert selector.utility_.nan_to_num(-1).tolist() == exact([20, 40, -1, 30])
    assert selector.duration_.nan_to_num(-1).tolist() == [1.0, 2.0, -1, 9.0]
    assert selector.last_.tolist() == [1, 1, 0, 1]
    assert selector.turns_.tolist() == [1, 1, 0, 1]


def test_reports_that_are_not_finite_are_dropped() -> None:
    selector = fresh(3)
    first = now(selector, [1.0] * 3, 3)
    selector.select(first)
    selector.observe(first, told([0, 1, 2], [4, math.nan, math.inf], [1.0] * 3), torch.ones(3))
    assert selector.utility_.isfinite().tolist() == [True, False, False]


@pytest.mark.parametrize(("known", "available", "k"), [(0, 3, 5), (2, 4, 3), (6, 6, 4), (6, 2, 4), (5, 6, 6)])
def test_places_are_filled_while_clients_are_there(known: int, available: int, k: int) -> None:
    for pacer in ("flat", "falling"):
        selector = fresh(6, pacer=pacer)
        first = now(selector, [1.0] * 6, 6)
        selector.select(first)
        if known:
            selector.observe(first, told(range(known), [4.0] * known, [1.0] * known), torch.ones(known))
        plan = selector.select(now(selector, [1.0] * 6, k, round=1, absent=range(available, 6)))
        clients = chosen(plan)
        assert len(clients) == len(set(clients)) == min(k, available)
        assert max(clients) < available


def test_who_was_picked_too_often_rests() -> None:
    selector = fresh(10, most_turns=1, exploration=1e-9, exploration_floor=0.0, cutoff=1.0)
    for round in range(2):
        at = now(selector, [1.0] * 10, 10, round=round)
        selector.select(at)
        squared = [float(client + 1) for client in range(10)]
        selector.observe(at, told(range(10), squared, [1.0] * 10), torch.ones(10))
    # All were picked twice; three may rest, the lowest ids among equals.
    assert len(chosen(selector.select(now(selector, [1.0] * 10, 10, round=2)))) == 7


def test_the_pacers_move_after_their_windows() -> None:
    flat, falling = fresh(2, window=2, percentile=50.0), fresh(2, window=2, percentile=50.0, pacer="falling")
    for selector in (flat, falling):
        for round in range(6):
            at = now(selector, [1.0, 3.0], 2, round=round)
            selector.select(at)
            squared = [(10.0 - 0.1 * round) ** 2] * 2
            selector.observe(at, told([0, 1], squared, [1.0, 3.0]), torch.ones(2))
    # The first round explores, so that it achieves nothing by exploitation.
    assert flat.percentile_ == 55.0
    assert falling.preferred_ > 3.0
    assert falling.step_ == 3.0
