"""The closing of a round: steps of an update on its client, and other aggregates than the weighted sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import built, run_round, settings
from torch import Tensor

from flsel.config.simulated_time import AsyncConfig
from flsel.devices import LogNormal
from flsel.engine.closing import Closing
from flsel.engine.federation import Federation
from flsel.engine.round_job import train
from flsel.errors import UserError
from flsel.params import Params
from flsel.selector import Need, Plan, Selector, Updates, View
from flsel.selectors import Uniform


class Sees(Uniform):
    """Keeps the updates that it observes."""

    needs = Need.DELTAS | Need.OWN_LOSS

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        self.saw = updates


class Scale:
    """Multiplies the update of each client by a factor, and keeps what it was asked."""

    def __init__(self, *factors: float) -> None:
        self.factors, self.asked = factors, list[tuple[list[int], list[int]]]()

    def __call__(self, deltas: Params, clients: Sequence[int], turns: Sequence[int]) -> Params:
        self.asked.append((list(clients), list(turns)))
        by = torch.tensor([self.factors[client % len(self.factors)] for client in clients])
        return {n: v * by.to(v).view(-1, *[1] * (v.ndim - 1)) for n, v in deltas.items()}


def median(stack: Params, weights: Tensor, clients: Sequence[int], round: int) -> Params:
    return {name: value.median(dim=0).values for name, value in stack.items()}


def with_closing(folder: Path, **changes: Any) -> tuple[Any, Any]:
    """Build a run twice: as it is, and with another closing."""
    closing = {key: changes.pop(key) for key in ("on_client", "aggregate") if key in changes}
    config = settings(folder, selector=Sees(), precision="64-true", **changes)
    plain, other = built(config).server, built(config).server
    found: Federation = replace(other.federation, closing=Closing(**closing))
    other.federation = found
    if other.arrivals is not None:
        other.arrivals = replace(other.arrivals, federation=found)
    return plain, other


def test_an_update_changes_on_its_client_before_anybody_sees_it(tmp_path: Path) -> None:
    step = Scale(1.0, 0.5, 2.0)
    plain, other = with_closing(tmp_path, on_client=step)
    first, second = run_round(plain), run_round(other)
    clients = [path[0] for path in first.plan.paths]
    assert step.asked == [(clients, [0] * 3)]
    expected = Scale(*step.factors)(plain.selector.saw.deltas, clients, [0] * 3)
    assert {1.0, 0.5, 2.0} >= {step.factors[c % 3] for c in clients} != {1.0}
    for name, value in expected.items():
        torch.testing.assert_close(other.selector.saw.deltas[name], value)
        torch.testing.assert_close(second.delta[name], torch.tensordot(second.weights, value, dims=1))
    assert torch.equal(first.weights, second.weights)


def test_what_is_not_finite_when_it_is_sent_is_dropped(tmp_path: Path) -> None:
    _, other = with_closing(tmp_path, on_client=Scale(*[2.0] * 7, float("nan")), clients_per_round=8)
    outcome = run_round(other)
    assert outcome.dropped == (7,)
    assert float(outcome.weights.sum()) == pytest.approx(1.0)


class Twice(Sees):
    def select(self, view: View) -> Plan:
        return Plan.star([4, 1, 4])


def test_a_client_that_is_drawn_twice_sends_once(tmp_path: Path) -> None:
    step = Scale(1.0, 0.5)
    server = built(settings(tmp_path, selector=Twice())).server
    server.federation = replace(server.federation, closing=Closing(on_client=step))
    run_round(server)
    assert step.asked == [([4, 1], [0, 0])]
    for value in server.selector.saw.deltas.values():
        assert torch.equal(value[0], value[2])
        assert not torch.equal(value[0], value[1])


@pytest.mark.parametrize("mixing", ["updates", "models"])
def test_asynchronous_rounds_close_alike(tmp_path: Path, mixing: Any) -> None:
    rules = AsyncConfig(concurrency=5, buffer=3, mixing=mixing)
    plain, other = with_closing(tmp_path, on_client=Scale(0.5), devices=LogNormal(), asynchronous=rules)
    first, second = plain.step().outcome, other.step().outcome
    saw, halved = plain.selector.saw, other.selector.saw
    for name, value in saw.deltas.items():
        torch.testing.assert_close(halved.deltas[name], value / 2)
        torch.testing.assert_close(second.delta[name], first.delta[name] / 2)


def test_a_step_that_changes_nothing_leaves_stale_models_where_they_were(tmp_path: Path) -> None:
    rules = AsyncConfig(concurrency=5, buffer=2, mixing="models")
    plain, other = with_closing(tmp_path, on_client=Scale(1.0), devices=LogNormal(), asynchronous=rules)
    for _ in range(5):
        first, second = plain.step().outcome, other.step().outcome
    assert any(first.staleness)
    assert first.staleness == second.staleness
    for name, value in plain.params.items():
        torch.testing.assert_close(other.params[name].data, value.data, atol=1e-12, rtol=0)


def test_another_aggregate_takes_the_place_of_the_weighted_sum(tmp_path: Path) -> None:
    plain, other = with_closing(tmp_path, aggregate=median, clients_per_round=5)
    run_round(plain)
    outcome = run_round(other)
    for name, value in plain.selector.saw.deltas.items():
        assert torch.equal(outcome.delta[name], value.median(dim=0).values)


class Counts(Selector):
    """Counts empty rounds where it may."""

    def __init__(self, plans: bool = True, names: bool = False) -> None:
        self.plans, self.names = plans, names

    @property
    def plans_empty_rounds(self) -> bool:  # type: ignore[override]
        return self.plans

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        self.empty_ = 0

    def select(self, view: View) -> Plan:
        assert self.plans or len(view.pool)
        self.empty_ += len(view.pool) == 0
        return Plan.star([0] if self.names else view.pool[: view.clients_per_round])


@pytest.mark.parametrize("plans", [True, False])
def test_a_selector_gets_an_empty_pool_only_where_it_declares_so(tmp_path: Path, plans: bool) -> None:
    server = built(settings(tmp_path, selector=Counts(plans))).server
    everybody = server.federation.available
    server.federation = replace(
        server.federation, available=lambda round: everybody(round) & torch.tensor(round not in (0, 2, 5))
    )
    while not server.finished:
        server.step()
    assert server.selector.empty_ == 3 * plans
    assert int(server.counts.sum()) == 3 * 3


def test_nobody_can_be_planned_in_an_empty_round(tmp_path: Path) -> None:
    server = built(settings(tmp_path, selector=Counts(names=True))).server
    federation = replace(server.federation, available=lambda round: torch.zeros(8, dtype=torch.bool))
    with pytest.raises(UserError, match="Counts planned client 0, who is not available in round 0"):
        federation.open(0, server.params, server.selector)
    assert train([federation.open(0, server.params, Counts(plans=False))], federation.trainer) == [{}]
