"""Asynchronous rounds: who arrives when, how stale, with what weight, and that nothing else matters."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, differ_when_resumed, same, settings
from torch import Tensor, nn, optim

import flsel
from flsel.availability import LN
from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.config.simulated_time import AsyncConfig, TimeConfig
from flsel.data.data_config import DataConfig, SyntheticConfig
from flsel.devices import Devices, Equal, HalfNormal, LogNormal, Phones, Table
from flsel.engine.server import RoundRecord, Server
from flsel.errors import DivergedError, UserError
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit
from flsel.objectives import MOON, SCAFFOLD, FedDyn, FedNova
from flsel.params import Params
from flsel.runner.build import build
from flsel.selector import Need, Plan, Selector, Updates, View
from flsel.selectors import DivFL, FedCat, Uniform

TARGETS = (4.0, -2.0, 8.0, 1.0)
SECONDS = (1.0, 2.5, 4.0, 1.5)
RARELY = EvaluationConfig(every=10**4)
FOUR = {"clients": 4, "clients_per_round": 2, "precision": "64-true", "rounds": 20}


@dataclass(frozen=True)
class Given(Devices):
    """Devices whose trainings take so many seconds, whatever they compute or send."""

    seconds: tuple[float, ...] = SECONDS

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        return Table(1e-30, 1e30, 1e30, np.array(self.seconds))


class Halfway(LocalTrainer):
    """Every parameter of client i ends halfway between where it starts and c_i."""

    def __init__(self, diverge: Sequence[tuple[int, int]] = ()) -> None:
        self.diverge, self.calls = set(diverge), list[int]()

    def train(self, visits: Sequence[Visit]) -> Params:
        self.calls.append(len(visits))
        factors = [float("nan") if (v.client, v.turn) in self.diverge else 0.5 for v in visits]
        return {
            name: torch.stack(
                [
                    visit.start[name] + factor * (TARGETS[visit.client % 4] - visit.start[name])
                    for visit, factor in zip(visits, factors, strict=True)
                ]
            )
            for name in visits[0].start
        }


@dataclass(eq=False)
class RoundRobin(Selector):
    """Take turns, past those in flight; what it sees is kept."""

    next_: int = field(init=False, default=0)
    seen: list[Any] = field(init=False, default_factory=list, repr=False)

    def select(self, view: View) -> Plan:
        self.seen.append((view.round, view.clock, dict(view.running), view.clients_per_round))
        chosen = []
        while len(chosen) < view.clients_per_round:
            if view.available[self.next_] and self.next_ not in chosen:
                chosen.append(self.next_)
            self.next_ = (self.next_ + 1) % len(view.sizes)
        return Plan.star(chosen)

    def weigh(self, view: View, updates: Updates) -> Tensor:
        return torch.full((len(updates.plan),), 1 / len(updates.plan), dtype=torch.float64)


def toy(tmp_path: Path, trainer: LocalTrainer | None = None, **rules: Any) -> Server:
    made = {"concurrency": 3, **rules}
    chosen = settings(
        tmp_path, devices=Given(), selector=RoundRobin(), asynchronous=AsyncConfig(**made), **FOUR
    )
    server = build(chosen, trainer=trainer or Halfway()).server
    for value in server.params.values():
        value.zero_()
    return server


def level(server: Server) -> float:
    """The value of the parameters, which are all alike."""
    values = torch.cat([value.flatten() for value in server.params.values()])
    assert float(values.max() - values.min()) < 1e-12
    return float(values[0])


def arrivals(records: Sequence[RoundRecord]) -> list[tuple[int, int]]:
    return [
        (path[0], since)
        for record in records
        for path, since in zip(record.outcome.plan.paths, record.outcome.staleness or (), strict=True)
    ]


@pytest.mark.parametrize(
    ("division", "models"),
    [
        ("buffer", [0.5, 1.551777, 2.264535, 2.599783]),
        ("weights", [0.5, 1.732233, 2.842054, 3.225938]),
    ],
)
def test_fedbuff_does_what_was_computed_by_hand(tmp_path: Path, division: Any, models: list[float]) -> None:
    server = toy(tmp_path, division=division)
    records, found = [], []
    for _ in models:
        records.append(server.step())
        found.append(level(server))
    assert found == pytest.approx(models, abs=1e-6)
    assert arrivals(records) == [(0, 0), (1, 0), (3, 1), (0, 0), (2, 2), (1, 1), (3, 1), (0, 1)]
    assert [server.elapsed.seconds, server.ledger["trainings"]] == [5.0, 10]
    assert [record.outcome.time.seconds for record in records if record.outcome.time] == [2.5, 1.0, 1.5, 0.0]


def test_fedasync_does_what_was_computed_by_hand(tmp_path: Path) -> None:
    server = toy(tmp_path, buffer=1, mixing="models")
    server.optimizer.param_groups[0]["lr"] = 0.6
    records, found = [], []
    for _ in range(6):
        records.append(server.step())
        found.append(level(server))
    assert found == pytest.approx([1.2, 0.266619, 0.620193, 1.262154, 1.996795, 1.066095], abs=1e-6)
    assert [since for _, since in arrivals(records)] == [0, 1, 1, 1, 4, 2]
    assert [client for client, _ in arrivals(records)] == [0, 1, 3, 0, 2, 1]


class Weighs(RoundRobin):
    """Gives updates weights of one sum."""

    needs = Need.DELTAS
    total = 1.0

    def weigh(self, view: View, updates: Updates) -> Tensor:
        return self.total * super().weigh(view, updates)

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        self.saw = updates.deltas["1.running_var"]


def test_fednova_divides_by_the_local_work(tmp_path: Path) -> None:
    rules, local = AsyncConfig(concurrency=3), LocalConfig(batch_size=1, epochs=1)
    changes: dict[str, Any] = {"selector": RoundRobin(), "asynchronous": rules, "local": local, **FOUR}
    server = built(settings(tmp_path, devices=Given(), objective=FedNova(), **changes)).server
    outcome = server.step().outcome
    steps = server.federation.sizes[[path[0] for path in outcome.plan.paths]].double()
    assert len(set(steps.tolist())) > 1
    torch.testing.assert_close(outcome.weights, 0.5 * steps.mean() / steps)


class Normed(nn.Sequential):
    def __init__(self, num_classes: int, input_shape: tuple[int, ...]) -> None:
        super().__init__(nn.Linear(input_shape[0], 5), nn.BatchNorm1d(5), nn.Linear(5, num_classes))


@pytest.mark.parametrize("total", [0.5, 1.0, 2.0])
def test_running_statistics_are_averaged_whatever_the_weights_sum_to(tmp_path: Path, total: float) -> None:
    rules = AsyncConfig(concurrency=3)
    changes: dict[str, Any] = {"selector": Weighs(), "model": Normed, "asynchronous": rules, **FOUR}
    server = built(settings(tmp_path, devices=Given(), **changes)).server
    server.selector.total = total
    before = server.params["1.running_var"].detach().clone()
    server.step()
    change = server.params["1.running_var"].data - before
    torch.testing.assert_close(change, server.selector.saw.mean(dim=0).to(change))


def test_a_selector_sees_who_is_in_flight(tmp_path: Path) -> None:
    server = toy(tmp_path)
    server.step()
    server.step()
    assert server.selector.seen == [  # type: ignore[attr-defined]
        (0, 0.0, {}, 3),
        (0, 1.0, {1: 0, 2: 0}, 1),
        (1, 2.5, {2: 0, 3: 0}, 1),
        (1, 2.5, {2: 0, 0: 1}, 1),
    ]


def test_staleness_weights() -> None:
    late = torch.tensor([0, 1, 4, 5, 8])
    assert AsyncConfig(concurrency=1, staleness="constant").weight(late).tolist() == [1.0] * 5
    polynomial = AsyncConfig(concurrency=1).weight(late)
    assert polynomial.tolist() == pytest.approx([1, 2**-0.5, 5**-0.5, 6**-0.5, 1 / 3])
    hinge = AsyncConfig(concurrency=1, staleness="hinge").weight(late)
    assert hinge.tolist() == pytest.approx([1, 1, 1, 1 / 11, 1 / 41])


def asynchronous(tmp_path: Path, concurrency: int = 5, **changes: Any) -> RunConfig:
    rules = {name: changes.pop(name) for name in ("buffer", "refill", "bound", "mixing") if name in changes}
    base = {"devices": LogNormal(), "selector": Uniform(weights="equal"), **changes}
    return settings(tmp_path, asynchronous=AsyncConfig(concurrency, **rules), **base)


@pytest.mark.parametrize(("clients", "equal"), [(8, True), (8, False), (1, True)])
def test_all_slots_refilled_after_each_step_are_a_synchronous_run(
    tmp_path: Path, clients: int, equal: bool
) -> None:
    common = {
        "clients": clients, "clients_per_round": clients, "precision": "64-true",
        "devices": Equal() if equal else LogNormal(), "selector": Uniform(weights="equal"),
    }  # fmt: skip
    one = built(settings(tmp_path, **common)).server
    refill = "step" if clients > 1 else "arrival"
    other = built(asynchronous(tmp_path, clients, refill=refill, **common)).server
    for _ in range(4):
        one.step()
        other.step()
    assert all(torch.allclose(one.params[n], other.params[n], rtol=1e-12, atol=1e-13) for n in one.params)
    assert one.ledger == other.ledger
    assert one.elapsed.seconds == pytest.approx(other.elapsed.seconds, rel=1e-12)


@pytest.mark.parametrize("devices", [LogNormal(), HalfNormal()])
@pytest.mark.parametrize(("concurrency", "buffer"), [(30, 10), (12, 3)])
def test_mean_staleness_depends_on_concurrency_and_buffer_alone(
    tmp_path: Path, devices: Devices, concurrency: int, buffer: int
) -> None:
    config = settings(
        tmp_path, devices=devices, clients=40, clients_per_round=buffer, rounds=10**4,
        asynchronous=AsyncConfig(concurrency), evaluation=RARELY,
    )  # fmt: skip
    server = build(config, trainer=Halfway()).server
    steps = 1500 // buffer
    found = [since for _, since in arrivals([server.step() for _ in range(steps)])]
    assert np.mean(found) == pytest.approx((concurrency - 1) / buffer, rel=0.03)


def test_refilling_after_steps_lowers_the_mean_staleness_by_a_step(tmp_path: Path) -> None:
    config = asynchronous(
        tmp_path, 8, clients=8, clients_per_round=2, rounds=10**4, refill="step", evaluation=RARELY
    )
    server = build(config, trainer=Halfway()).server
    found = [since for _, since in arrivals([server.step() for _ in range(400)])]
    assert np.mean(found) == pytest.approx(8 / 2 - 1, rel=0.03)


def saved(server: Server) -> Any:
    buffer = io.BytesIO()
    torch.save(server.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
def test_a_resumed_run_goes_the_same_way_after_any_step(tmp_path: Path, backend: Any) -> None:
    local = replace(settings(tmp_path).local, backend=backend)
    config = asynchronous(tmp_path, clients_per_round=2, bound=4, local=local)
    assert differ_when_resumed(config, range(6)) == []


def test_a_rich_run_keeps_its_bits_when_it_is_stopped_in_any_round(tmp_path: Path) -> None:
    # Clients of a hundred examples and models that fit them: gradients of single examples nearly vanish.
    config = settings(
        tmp_path,
        rounds=48,
        clients=24,
        clients_per_round=5,
        seed=7,
        data=DataConfig(synthetic=SyntheticConfig(size_mean=3)),
        devices=Phones(),
        availability=LN(),
        asynchronous=AsyncConfig(9, buffer=3, bound=8),
        selector=Uniform(weights="equal"),
        local=LocalConfig(optimizer=partial(optim.SGD, lr=0.05)),
        server_optimizer=partial(optim.SGD, lr=1.0, momentum=0.9),
    )
    assert differ_when_resumed(config, range(config.rounds), rounds=6) == []


def test_a_run_is_resumed_after_any_arrival(tmp_path: Path) -> None:
    config = asynchronous(tmp_path, clients_per_round=4)
    whole = built(config).server
    for _ in range(4):
        whole.step()
    server = built(config).server
    rules, flights = server.arrivals, server.flights
    assert rules is not None
    for _ in range(4):
        while len(server.flights.buffer) < 4:  # type: ignore[union-attr]
            rules.dispatch(server.flights, server.round, server.params, server.selector)  # type: ignore[arg-type]
            rules.arrive(server.flights, server.round)  # type: ignore[arg-type]
            state = saved(server)
            server = built(config).server
            server.load_state_dict(state)
            rules = server.arrivals
            assert rules is not None
        server.step()
    assert flights is not server.flights
    assert same(whole.state_dict(), server.state_dict())


def test_stacks_equal_one_by_one(tmp_path: Path) -> None:
    ends = []
    for backend in ("sequential", "compiled"):
        local = replace(settings(tmp_path).local, backend=backend)
        server = built(asynchronous(tmp_path, 6, clients_per_round=1, rounds=8, local=local)).server
        for _ in range(8):
            server.step()
        ends.append(server.params)
    for other in ends[1:]:
        assert all(torch.allclose(ends[0][name], other[name], atol=1e-5) for name in other)


def test_flights_train_in_few_calls(tmp_path: Path) -> None:
    trainer = Halfway()
    config = asynchronous(tmp_path, 30, clients=40, clients_per_round=1, rounds=10**4, evaluation=RARELY)
    server = build(config, trainer=trainer).server
    for _ in range(400):
        server.step()
    assert sum(trainer.calls) <= 400 + 30
    assert np.mean(trainer.calls) > 4, "one call an arrival is what a stack is for"


@dataclass(eq=False)
class Smallest(RoundRobin):
    """Take the clients with the smallest names."""

    order: tuple[int, ...] = (0, 1, 2, 3)

    def select(self, view: View) -> Plan:
        names = {self.order[client]: client for client in view.pool}
        return Plan.star([names[name] for name in sorted(names)][: view.clients_per_round])


def test_permuted_clients_permute_the_run(tmp_path: Path) -> None:
    def arrive_in(order: Sequence[int]) -> tuple[list[float], list[tuple[int, int]]]:
        class Permuted(Halfway):
            def train(self, visits: Sequence[Visit]) -> Params:
                return super().train([visit._replace(client=order[visit.client]) for visit in visits])

        config = settings(
            tmp_path, devices=Given(tuple(SECONDS[name] for name in order)),
            selector=Smallest(order=tuple(order)),
            asynchronous=AsyncConfig(3), **FOUR,
        )  # fmt: skip
        server = build(config, trainer=Permuted()).server
        for value in server.params.values():
            value.zero_()
        levels, records = [], []
        for _ in range(6):
            records.append(server.step())
            levels.append(level(server))
        return levels, [(order[client], since) for client, since in arrivals(records)]

    assert arrive_in([0, 1, 2, 3]) == arrive_in([2, 0, 3, 1])


def test_an_update_that_is_not_finite_is_waited_for_by_another(tmp_path: Path) -> None:
    server = toy(tmp_path, Halfway(diverge=[(1, 0)]))
    records = [server.step() for _ in range(3)]
    assert records[0].outcome.dropped == (1,)
    assert records[0].outcome.weights.tolist() == pytest.approx([0.5, 0.5, 0.0])
    # Client 3, which started at once with client 1's slot still taken, takes its place.
    assert arrivals(records)[:3] == [(0, 0), (3, 0), (1, 0)]
    assert level(server) == level(server)
    assert server.ledger["dropped_updates"] == 1
    assert server.elapsed.wasted == pytest.approx(SECONDS[1])


def test_a_run_ends_where_no_update_is_finite(tmp_path: Path) -> None:
    every = [(client, turn) for client in range(4) for turn in range(50)]
    with pytest.raises(DivergedError, match="in a row up to round 0 returned a non-finite model"):
        toy(tmp_path, Halfway(diverge=every)).step()


def test_too_stale_updates_are_dropped_and_counted(tmp_path: Path) -> None:
    server = toy(tmp_path, bound=1)
    records = [server.step() for _ in range(4)]
    assert [since for _, since in arrivals(records)] == [0, 0, 1, 0, 1, 0, 1, 0]
    late = [record.outcome.time.late for record in records if record.outcome.time]
    assert late[2] == (2,)
    assert server.elapsed.wasted == SECONDS[2]


@dataclass(eq=False)
class Asks(Selector):
    """Ask for everything that an asynchronous run answers."""

    told: list[Updates] = field(init=False, default_factory=list, repr=False)

    @property
    def needs(self) -> Need:
        return Need.LOSSES | Need.OWN_LOSS | Need.SQUARED_LOSS | Need.DURATIONS | Need.DELTAS | Need.HEAD

    def select(self, view: View) -> Plan:
        losses = view.losses(range(len(view.sizes)))
        assert [bool(loss.isnan()) for loss in losses] == [client in view.running for client in range(4)]
        return Plan.star(view.pool[: view.clients_per_round])

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        self.told.append(updates)


def test_a_dispatch_that_asks_waits_for_the_answers(tmp_path: Path) -> None:
    selector = Asks()
    config = settings(
        tmp_path, devices=Given((1.0, 1.0, 1.0, 1.0)), selector=selector, asynchronous=AsyncConfig(2),
        **{**FOUR, "clients_per_round": 1},
    )  # fmt: skip
    server = built(config).server
    assert isinstance(server.selector, Asks)
    record = server.step()
    # A question of one second, then a training of one.
    assert server.elapsed.seconds == pytest.approx(2.0)
    assert record.outcome.time is not None
    assert record.outcome.time.questions == pytest.approx(1.0)
    server.step()
    first, second = server.selector.told
    assert [first.staleness.tolist(), second.staleness.tolist()] == [[0], [1]]
    assert second.durations.tolist() == pytest.approx([1.0])
    assert torch.isfinite(second.own_loss).all()
    assert torch.isfinite(second.squared_loss).all()
    assert second.head["weight"].shape[0] == 1
    assert server.ledger["passes"] > 0


def test_columns_and_budget(tmp_path: Path) -> None:
    config = asynchronous(tmp_path, clients_per_round=2, rounds=50, stop_after_trainings=20)
    server = built(config).server
    start = server.evaluate(torch.empty(0, dtype=torch.int64))
    assert [start["async/in_flight"], start["async/staleness_mean"]] == [0, 0]
    record = None
    while not server.finished:
        record = server.step()
    assert record is not None
    assert record.metrics is not None
    assert 20 <= record.metrics["ledger/trainings"] < 24
    assert record.metrics["async/in_flight"] == 4
    in_air = sum(flight.seconds for flight in server.flights.flying)  # type: ignore[union-attr]
    assert record.metrics["clock/wasted_client_seconds"] == pytest.approx(in_air)
    timed = replace(config, stop_after_trainings=None, time=TimeConfig(stop_after_seconds=5.0))
    server = built(timed).server
    while not server.finished:
        before = server.elapsed.seconds
        server.step()
    assert before < 5 <= server.elapsed.seconds


def test_synchronous_over_selected_and_asynchronous_variants_are_compared(tmp_path: Path) -> None:
    config = settings(
        tmp_path, rounds=100, stop_after_trainings=16, devices=LogNormal(), evaluation=EvaluationConfig(2)
    )
    variants = {
        "Synchronous": {"clients_per_round": 4},
        "Over-selected": {"clients_per_round": 3, "time.over_selection": 1.4},
        "FedBuff": {"asynchronous.concurrency": 4, "asynchronous.buffer": 2},
    }
    found = flsel.compare(
        config, variants, seeds=2, cost="simulated_seconds", target=0.5, baseline="Synchronous",
        folder=str(tmp_path / "comparisons"),
    )  # fmt: skip
    assert {run.status for run in found.analysis.runs} == {"complete"}
    spent = {
        (run.variant, run.seed): run.result.history["ledger/trainings"][-1] for run in found.analysis.runs
    }
    assert all(16 <= trainings < 16 + 4 for trainings in spent.values())
    means = found.summary.set_index(["variant", "measure"])["mean"]
    assert means["FedBuff", "accuracy/equal_simulated_seconds"] > 0
    assert "simulated s" in found.to_markdown()


def test_a_result_tells_how_stale_updates_were(tmp_path: Path) -> None:
    result = flsel.run(asynchronous(tmp_path, clients_per_round=2))
    for step in result.rounds:
        assert len(step.staleness) == len(step.plan) == 2
    means = [float(np.mean(step.staleness)) for step in result.rounds]
    assert result.history["async/staleness_mean"].tolist()[1:] == means
    assert result.history["ledger/trainings"][-1] == 5 + 2 * 5 + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": None}, "devices must be set with asynchronous.concurrency"),
        (
            {"asynchronous": AsyncConfig(2)},
            "clients_per_round must be at most asynchronous.concurrency, got 3",
        ),
        ({"asynchronous": AsyncConfig(4, buffer=5)}, "asynchronous.buffer must be at most asynchronous.conc"),
        ({"asynchronous": AsyncConfig(9)}, "at most the number of clients, got 9 of 8"),
        ({"time": TimeConfig(over_selection=1.3)}, "time.over_selection must be 1.0 with asynchronous"),
        ({"time": TimeConfig(deadline=3.0)}, "time.deadline must be null with asynchronous"),
        ({"objective": SCAFFOLD()}, "null with objective SCAFFOLD, since"),
        ({"objective": FedDyn()}, "null with objective FedDyn, since"),
        ({"objective": MOON()}, "null with objective MOON, since"),
        ({"selector": DivFL()}, "null with DivFL, since"),
        ({"selector": FedCat()}, "null with FedCat, since"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        built(settings(tmp_path, **{"devices": LogNormal(), "asynchronous": AsyncConfig(5)} | changes))
    assert message in str(caught.value)
    assert str(caught.value).count(". ") == 0


def test_a_setting_without_concurrency_is_refused() -> None:
    with pytest.raises(UserError, match="buffer must be null without asynchronous"):
        AsyncConfig(buffer=3)


@dataclass(eq=False)
class Stubborn(Selector):
    clients: tuple[int, ...] = (0,)

    def select(self, view: View) -> Plan:
        return Plan.star(self.clients)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (
            (0, 1, 2, 3, 4, 5),
            "planned 6 clients in round 0, where view.clients_per_round, the free slots, is 5",
        ),
        ((0, 0), "planned client 0 twice in round 0"),
        ((0, 1), "planned client 0, who is not available in round 0"),
    ],
)
def test_plans_that_break_the_contract_are_refused(
    tmp_path: Path, clients: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        built(asynchronous(tmp_path, selector=Stubborn(clients))).server.step()
