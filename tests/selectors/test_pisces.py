"""Pisces against its formulas written out, and in asynchronous runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_views import chosen, view
from runs import built, settings

from flsel.config.groups import EvaluationConfig
from flsel.config.simulated_time import AsyncConfig
from flsel.devices import LogNormal
from flsel.rng import generator
from flsel.selector import Need, Plan, Updates
from flsel.selectors.pisces import Pisces

SIZES = [4, 1, 2, 3, 5]


def seen(k: int, **changes: Any) -> Any:
    return view(SIZES, k, needs=Need.SQUARED_LOSS, **changes)


def back(clients: list[int], squared: list[float], staleness: list[int]) -> Updates:
    return Updates(
        Plan.star(clients), torch.tensor([SIZES[k] for k in clients]), torch.ones(len(clients)),
        Need.SQUARED_LOSS, {"squared_loss": torch.tensor(squared, dtype=torch.float64)},
        steps_since=torch.tensor(staleness),
    )  # fmt: skip


def fresh(**changes: Any) -> Pisces:
    made = Pisces(**changes)
    made.reset(torch.tensor(SIZES), 2)
    return made


def test_utilities_and_weights_are_what_was_computed_by_hand() -> None:
    selector, history = fresh(window=2), [[3], [1], [0]]
    for (late,), wanted in zip(history, (3.0, 2.0, 0.5), strict=True):
        update = back([0, 3], [4.0, 9.0], [late, 0])
        weights = selector.weigh(seen(2), update)
        assert weights.tolist() == pytest.approx([4 / 7 * (1 + wanted) ** -0.5, 3 / 7])
        selector.observe(seen(2), update, weights)
        assert selector.utility_.tolist() == pytest.approx([4 * 2 * (1 + wanted) ** -0.5, 0, 0, 3 * 3, 0])


def test_a_report_that_is_not_finite_changes_no_utility() -> None:
    selector = fresh()
    for loss in (4.0, float("nan")):
        update = back([0], [loss], [0])
        selector.observe(seen(1), update, selector.weigh(seen(1), update))
    assert float(selector.utility_[0]) == 8.0


def test_slots_explore_by_a_chance_that_decays() -> None:
    known = torch.tensor([True, True, True, False, False])
    for round, share in ((0, 0.9), (5, 0.9 * 0.98**5), (400, 0.3)):
        explored = 0
        for seed in range(2000):
            selector = fresh()
            selector.explored_ = known.clone()
            shown = replace(seen(1), round=round, rng=generator(seed, "t"))
            explored += chosen(selector.select(shown))[0] >= 3
        assert explored / 2000 == pytest.approx(share, abs=0.03)


def test_known_clients_come_by_utility_and_unknown_ones_fill_up() -> None:
    selector = fresh(exploration=0.0, exploration_floor=0.0)
    selector.explored_ = torch.tensor([True, True, True, False, False])
    selector.utility_ = torch.tensor([1.0, 3.0, 2.0, 0.0, 0.0], dtype=torch.float64)
    assert chosen(selector.select(seen(2))) == [1, 2]
    assert chosen(selector.select(seen(2, absent=[1]))) == [2, 0]
    order = chosen(selector.select(seen(4)))
    assert (order[:3], order[3] in (3, 4)) == ([1, 2, 0], True)
    assert int(selector.explored_.sum()) == 4


def test_slow_clients_lose_by_their_staleness(tmp_path: Path) -> None:
    config = settings(
        tmp_path, devices=LogNormal(sigma=1.4), selector=Pisces(), rounds=40, clients_per_round=2,
        asynchronous=AsyncConfig(4, staleness="constant"), evaluation=EvaluationConfig(every=40),
    )  # fmt: skip
    server = built(config).server
    assert server.federation.clock is not None
    seconds = np.log(server.federation.clock.profile(np.arange(8)))
    for _ in range(40):
        server.step()
    assert isinstance(server.selector, Pisces)
    told = server.selector.staleness_.nanmean(dim=1).numpy()
    known = np.isfinite(told)
    assert known.sum() >= 4
    assert np.corrcoef(seconds[known], told[known])[0, 1] > 0.3
