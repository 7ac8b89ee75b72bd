"""OptimalSampling: unbiased over draws, what is sent, and what the ledger says of it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_views import view
from runs import built, settings

from flsel.config.groups import LocalConfig
from flsel.errors import UserError
from flsel.objectives import SCAFFOLD
from flsel.selector import Need, Plan, Updates
from flsel.selectors.optimal_sampling import OptimalSampling

ROWS = np.array([[1.0, 0.0], [0.0, 8.0], [3.0, 4.0], [-2.0, 1.0], [0.5, 0.5]])
SIZES = [10, 2, 4, 20, 4]


def returned(rows: Any, sizes: list[int]) -> Updates:
    return Updates(
        plan=Plan.star(range(len(rows))),
        sizes=torch.tensor(sizes),
        steps=torch.ones(len(rows), dtype=torch.int64),
        needs=Need.DELTAS,
        answers={"deltas": {"w": torch.as_tensor(np.asarray(rows, dtype=np.float64))}},
    )


def drawn(selector: OptimalSampling, seed: int, rows: Any = ROWS, sizes: list[int] = SIZES) -> np.ndarray:
    seen = view(sizes, len(rows), seed=seed, needs=Need.DELTAS)
    return selector.weigh(seen, returned(rows, sizes)).numpy()


@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_the_sum_is_unbiased_over_draws_and_the_mean_number_is_kept(method: Any) -> None:
    times = 4000
    weights = np.array([drawn(OptimalSampling(2.0, method), seed) for seed in range(times)])
    share = np.array(SIZES) / sum(SIZES)
    error = 5 * weights.std(axis=0) / math.sqrt(times)
    assert (np.abs(weights.mean(axis=0) - share) <= error + 1e-12).all()
    sent = (weights > 0).sum(axis=1)
    assert abs(sent.mean() - 2.0) <= 5 * sent.std() / math.sqrt(times)
    assert {1, 2, 3} <= set(sent.tolist())


def test_the_chances_are_those_of_the_weighted_norms() -> None:
    """Nobody is above one half of the sum, so all chances are in proportion to share times norm."""
    lengths = np.array([10.0, 16.0, 20.0, 20 * math.sqrt(5), 4 * math.sqrt(0.5)])
    assert 2 * lengths.max() < lengths.sum()
    expected = 2 * lengths / lengths.sum()
    share = np.array(SIZES) / sum(SIZES)
    for seed in range(50):
        weights = drawn(OptimalSampling(2.0, "exact"), seed)
        sent = weights > 0
        np.testing.assert_allclose(weights[sent], (share / expected)[sent])


def test_the_variance_is_smaller_than_that_of_uniform_coins() -> None:
    """By enumeration of all coins, with the chances read off the weights that were drawn."""
    share = np.array(SIZES) / sum(SIZES)
    chance = np.zeros(5)
    for seed in range(200):
        weights = drawn(OptimalSampling(2.0, "exact"), seed)
        chance[weights > 0] = (share / np.where(weights > 0, weights, 1))[weights > 0]

    def moments(p: np.ndarray) -> tuple[np.ndarray, float]:
        full, mean, square = share @ ROWS, np.zeros(2), 0.0
        for coins in itertools.product([0, 1], repeat=5):
            likely = np.prod(np.where(coins, p, 1 - p))
            estimate = (np.array(coins) * share / p) @ ROWS
            mean, square = mean + likely * estimate, square + likely * ((estimate - full) ** 2).sum()
        return mean, square

    mean, variance = moments(chance)
    np.testing.assert_allclose(mean, share @ ROWS, atol=1e-12)
    assert variance < moments(np.full(5, 0.4))[1]


def test_a_mean_of_everybody_is_fedavg() -> None:
    for method in ("exact", "approximate"):
        selector: Any = OptimalSampling(5.0, method)
        np.testing.assert_allclose(drawn(selector, 1), np.array(SIZES) / sum(SIZES))


def test_half_of_the_candidates_is_the_default_and_what_is_not_finite_is_not_sent() -> None:
    rows = ROWS.copy()
    rows[1] = math.inf
    for seed in range(30):
        assert drawn(OptimalSampling(), seed, rows)[1] == 0.0
    sent = np.mean([(drawn(OptimalSampling(None, "exact"), seed) > 0).sum() for seed in range(1000)])
    assert sent == pytest.approx(3.0, abs=0.2)


def test_a_mean_above_the_candidates_is_refused() -> None:
    with pytest.raises(UserError, match=r"selector.mean must be at most clients_per_round \(3\), got 4"):
        OptimalSampling(4.0).check_clients_per_round(3)


@pytest.mark.parametrize(("method", "least", "most"), [("exact", 1, 1), ("approximate", 3, 9)])
def test_the_ledger_counts_what_is_sent(tmp_path: Path, method: Any, least: int, most: int) -> None:
    run = built(settings(tmp_path, selector=OptimalSampling(1.5, method)))
    outcomes = [run.server.step().outcome for _ in range(6)]
    ledger, sent = run.server.ledger, sum(int((o.weights > 0).sum()) for o in outcomes)
    assert 0 < sent < 18
    assert (ledger["trainings"], ledger["models_down"], ledger["models_up"]) == (18, 18, sent)
    assert ledger["bytes_up"] * 18 == ledger["bytes_down"] * sent
    assert 18 * least <= ledger["scalars_up"] <= 18 * most


@pytest.mark.parametrize("seed", range(4))
def test_every_backend_sends_as_many_numbers(tmp_path: Path, seed: int) -> None:
    ledgers = []
    for backend in ("sequential", "compiled"):
        local = LocalConfig(batch_size=5, steps=3, backend=backend)
        run = built(
            settings(tmp_path, selector=OptimalSampling(), clients_per_round=7, local=local, seed=seed)
        )
        for _ in range(6):
            run.server.step()
        ledgers.append(dict(run.server.ledger))
    assert ledgers[0] == ledgers[1]


def test_objectives_with_state_of_participants_are_refused(tmp_path: Path) -> None:
    run = built(settings(tmp_path, selector=OptimalSampling(), objective=SCAFFOLD()))
    with pytest.raises(UserError, match="SCAFFOLD keeps state of every participant"):
        run.server.step()
