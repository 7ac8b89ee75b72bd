"""Rounds: closed forms, the ledger, dropped updates, and plans that break the rules."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from runs import DIMENSION, Quadratic, built, run_round, settings, trained
from torch import Tensor, nn, optim

from flsel.config import RunConfig
from flsel.config.groups import LocalConfig
from flsel.data.data_config import DataConfig
from flsel.errors import DivergedError, UserError
from flsel.local.schedule import BatchSpec, batch_table
from flsel.params import model_bytes
from flsel.partition import IID, BySize
from flsel.selector import IDLE, Need, Plan, Selector, Updates, View
from flsel.selectors.complete import Complete
from flsel.selectors.uniform import Uniform


def quadratic(folder: Path, **changes: Any) -> RunConfig:
    base = settings(
        folder,
        clients=4,
        clients_per_round=4,
        data=DataConfig(name="runs.points", validation=0.0, server=0.0),
        partition=BySize(sizes=(1.0, 2.0, 3.0, 4.0)),
        model=Quadratic,
        local=LocalConfig(batch_size=64, steps=1),
        selector=Complete(),
        precision="64-true",
    )
    return replace(base, **changes)


def centre(data: Any, clients: list[int]) -> Tensor:
    return data.population.x[torch.cat([data.population.shards[c] for c in clients])].double().mean(dim=0)


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
def test_fedavg_on_a_quadratic_has_its_closed_form(tmp_path: Path, backend: Any) -> None:
    rounds, lr = 5, 0.1
    config = quadratic(tmp_path, local=LocalConfig(batch_size=64, steps=1, backend=backend))
    run = built(config)
    for _ in range(rounds):
        run.server.step()
    mean = centre(run.data, [0, 1, 2, 3])
    expected = mean + (1 - lr) ** rounds * (5.0 - mean)
    torch.testing.assert_close(run.server.params["w"].data, expected, atol=1e-12, rtol=0)


def test_uniform_weights_leave_the_mean_of_clients(tmp_path: Path) -> None:
    config = quadratic(tmp_path, selector=Uniform(weights="equal"))
    run = built(config)
    run.server.step()
    means = torch.stack([centre(run.data, [c]) for c in range(4)]).mean(dim=0)
    torch.testing.assert_close(run.server.params["w"].data, 0.9 * 5.0 + 0.1 * means, atol=1e-12, rtol=0)


def test_server_momentum_acts_on_the_pseudo_gradient(tmp_path: Path) -> None:
    config = quadratic(tmp_path, server_optimizer=partial(optim.SGD, lr=1.0, momentum=0.5))
    run = built(config)
    mean, w, velocity = centre(run.data, [0, 1, 2, 3]), torch.full((DIMENSION,), 5.0).double(), 0.0
    for _ in range(4):
        run.server.step()
        velocity = 0.5 * velocity + 0.1 * (w - mean)
        w = w - velocity
    torch.testing.assert_close(run.server.params["w"].data, w, atol=1e-12, rtol=0)


def test_one_client_and_one_round_is_centralised_sgd(tmp_path: Path) -> None:
    spec = BatchSpec(5, epochs=2)
    config = settings(
        tmp_path,
        rounds=1,
        clients=1,
        clients_per_round=1,
        precision="64-true",
        partition=IID(),
        local=LocalConfig(batch_size=5, epochs=2, optimizer=partial(optim.SGD, lr=0.1, momentum=0.9)),
    )
    run = built(config)
    net = nn.Linear(8, 4).double()
    with torch.no_grad():
        for parameter, start in zip(net.parameters(), run.server.params.values(), strict=True):
            parameter.copy_(start)
    run.server.step()

    optimizer, data = optim.SGD(net.parameters(), lr=0.1, momentum=0.9), run.data.population
    for row in batch_table(spec, data.shards[0].numpy(), seed=0, round=0, client=0):
        where = row[row >= 0]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data.x[where].double()), data.y[where]).backward()
        optimizer.step()
    for parameter, end in zip(net.parameters(), run.server.params.values(), strict=True):
        torch.testing.assert_close(parameter.detach(), end.data, atol=1e-12, rtol=0)


class Scripted(Selector):
    """Selects given paths and keeps what it saw."""

    needs = (
        Need.OWN_LOSS | Need.DELTAS | Need.LOSSES | Need.SHADOW | Need.SERVER_LOSS | Need.HEAD | Need.LABELS
    )

    def __init__(self, paths: Any, ask: bool = False) -> None:
        self.paths = paths
        self.ask = ask

    def select(self, view: View) -> Plan:
        if self.ask:
            view.losses([0, 1])
            view.shadow([2])
            view.server_loss(view.params)
        return Plan(tuple(tuple(path) for path in self.paths))

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        self.seen = (view, updates, weights)


def one_round(folder: Path, selector: Selector, **changes: Any) -> tuple[Any, Any]:
    config = settings(folder, selector=selector, precision="64-true", **changes)
    run = built(config)
    outcome = run_round(run.server)
    return run, outcome


def test_a_path_visits_its_clients_in_order(tmp_path: Path) -> None:
    run, outcome = one_round(tmp_path, Scripted([(0, 1), (2, 0)]))
    params = run.server.params
    for row, path in enumerate([(0, 1), (2, 0)]):
        stack = {name: value[None] for name, value in params.items()}
        for hop, client in enumerate(path):
            stack = trained(run.server.federation, stack, [client], hop)
        for name, deltas in run.server.selector.seen[1].deltas.items():
            torch.testing.assert_close(deltas[row], stack[name][0] - params[name], atol=1e-12, rtol=0)
    sizes = run.data.population.sizes
    assert run.server.selector.seen[1].sizes.tolist() == [
        int(sizes[0] + sizes[1]),
        int(sizes[2] + sizes[0]),
    ]
    assert outcome.ledger["models_up"] == 4


def test_a_repeated_client_trains_once_and_counts_twice(tmp_path: Path) -> None:
    run, outcome = one_round(tmp_path, Scripted([(4,), (1,), (4,)]))
    updates = run.server.selector.seen[1]
    assert updates.clients.tolist() == [4, 1, 4]
    for deltas in updates.deltas.values():
        assert torch.equal(deltas[0], deltas[2])
        assert not torch.equal(deltas[0], deltas[1])
    assert outcome.ledger["trainings"] == 2
    assert torch.equal(updates.own_loss[0], updates.own_loss[2])


def test_the_ledger_counts_every_answer(tmp_path: Path) -> None:
    run, outcome = one_round(tmp_path, Scripted([(0,), (3,)], ask=True))
    size = model_bytes(run.server.params)
    assert size == sum(p.numel() for p in run.server.params.values()) * 8
    assert dict(outcome.ledger) == {
        "models_down": 2 + 1 + 2,  # losses, shadow training, cohort
        "bytes_down": 5 * size,
        "models_up": 1 + 2,
        "bytes_up": 3 * size,
        "trainings": 1 + 2,
        "shadow_trainings": 1,
        "passes": 2 + 2,  # losses, and the cohort's own losses
        "scalars_up": 2 + 2,
        "server_passes": 1,
    }


def test_answers_are_what_they_claim(tmp_path: Path) -> None:
    run, outcome = one_round(tmp_path, Scripted([(0,), (3,)]))
    view, updates, weights = run.server.selector.seen
    data, params = run.data.population, run.server.params
    weight, bias = params.values()

    def loss(client: int) -> Tensor:
        x, y = data.x[data.shards[client]].double(), data.y[data.shards[client]]
        return nn.functional.cross_entropy(x @ weight.T + bias, y)

    torch.testing.assert_close(updates.own_loss, torch.stack([loss(0), loss(3)]))
    torch.testing.assert_close(view.losses([5, 2]), torch.stack([loss(5), loss(2)]))
    holdout = run.data.server
    expected = nn.functional.cross_entropy(holdout.x.double() @ weight.T + bias, holdout.y)
    assert view.server_loss(params) == pytest.approx(float(expected), abs=1e-12)
    assert view.labels.sum(dim=1).tolist() == data.sizes.tolist()
    shadow = view.shadow([0])
    for name, (key, head) in zip(params, updates.head.items(), strict=True):
        assert key in name
        torch.testing.assert_close(head, updates.deltas[name], atol=0, rtol=0)
        torch.testing.assert_close(shadow[name][0] - params[name], updates.deltas[name][0])
    torch.testing.assert_close(weights, data.sizes[[0, 3]].double() / data.sizes[[0, 3]].sum())
    for name, delta in outcome.delta.items():
        torch.testing.assert_close(delta, torch.tensordot(weights, updates.deltas[name], dims=1))


class Fragile(nn.Module):
    """A network whose loss is not finite on inputs that are huge."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        assert num_classes is not None
        assert input_shape is not None
        self.linear = nn.Linear(input_shape[0], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * torch.where(x.abs().sum(dim=1, keepdim=True) > 1e6, torch.inf, 1.0))


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
def test_a_diverged_update_is_dropped_and_the_rest_is_aggregated(tmp_path: Path, backend: Any) -> None:
    config = settings(
        tmp_path,
        model=Fragile,
        selector=Scripted([(0,), (1,), (2,)]),
        local=LocalConfig(batch_size=5, steps=2, backend=backend),
    )
    run = built(config)
    run.data.population.x[run.data.population.shards[1]] = 1e7
    server = run.server
    record = server.step()
    assert record.outcome.dropped == (1,)
    assert record.outcome.weights[1] == 0
    assert float(record.outcome.weights.sum()) == pytest.approx(1.0)
    assert server.selector.seen[1].clients.tolist() == [0, 2]
    assert server.ledger["dropped_updates"] == 1
    assert all(bool(torch.isfinite(value).all()) for value in server.params.values())


def test_a_round_in_which_everybody_diverges_says_so(tmp_path: Path) -> None:
    config = settings(tmp_path, model=Fragile)
    run = built(config)
    run.data.population.x[:] = 1e7
    before = {name: value.clone() for name, value in run.server.params.items()}
    with pytest.raises(DivergedError, match="every client of round 0"):
        run.server.step()
    assert all(torch.equal(before[name], value) for name, value in run.server.params.items())
    assert run.server.round == 0
    run.server.params["linear.bias"].fill_(-torch.inf)
    with pytest.raises(DivergedError, match=r"before it trains, the model has such numbers in linear\.bias"):
        run.server.step()


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        ([], "returned an empty plan"),
        ([(0,), (1,), (2,), (3,)], "clients_per_round is 3"),
        ([(0, 1), (2,)], "different lengths"),
        ([(99,)], "not available"),
        ([(-2,)], "not available"),
        ([(IDLE,)], "visits no client"),
        ([(0, 1), (IDLE, IDLE)], "visits no client"),
        ([(0,) * 7], "7 hops"),
    ],
)
def test_plans_that_break_the_rules_are_refused(tmp_path: Path, paths: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        one_round(tmp_path, Scripted(paths))


class BadWeights(Uniform):
    def weigh(self, view: View, updates: Updates) -> Tensor:
        return torch.tensor([0.5, torch.nan, 0.5])


def test_weights_that_break_the_rules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"BadWeights\.weigh must return 3 finite weights"):
        one_round(tmp_path, BadWeights())


class Nosy(Uniform):
    def select(self, view: View) -> Plan:
        view.losses([0])
        return Plan.star([0])


def test_undeclared_information_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"add Need\.LOSSES"):
        one_round(tmp_path, Nosy())


class Scribbler(Uniform):
    """Write to what it is shown, in one of its methods."""

    where: ClassVar[str] = ""
    needs = Need.DELTAS

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        sizes.numpy()[:] = 0

    def select(self, view: View) -> Plan:
        view.sizes.zero_()
        view.available_at(0).numpy()[:] = False
        if self.where == "select":
            next(iter(view.params.values())).add_(1.0)
        if self.where == "numpy, select":
            next(iter(view.params.values())).numpy()[:] += 1.0
        return Plan.star([0, 1])

    def weigh(self, view: View, updates: Updates) -> Tensor:
        if self.where == "weigh":
            next(iter(view.params.values())).add_(1.0)
        if self.where == "numpy":
            next(iter(updates.deltas.values())).numpy()[:] = 0
        return super().weigh(view, updates)

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        if self.where == "observe":
            weights.mul_(2)


@pytest.mark.parametrize(
    ("where", "method"),
    [
        ("select", "select"),
        ("weigh", "weigh"),
        ("observe", "observe"),
        ("numpy, select", "select"),
        ("numpy", "weigh"),
    ],
)
def test_a_selector_that_writes_to_the_view_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, method: str
) -> None:
    monkeypatch.setattr(Scribbler, "where", where)
    with pytest.raises(UserError, match=rf"Scribbler\.{method} writes to what the view or the updates show"):
        one_round(tmp_path, Scribbler())


def test_sizes_are_shown_as_a_copy(tmp_path: Path) -> None:
    run, _ = one_round(tmp_path, Scribbler())
    assert (run.server.federation.sizes > 0).all()


class Weigher(Uniform):
    """Weighs in any precision."""

    given: ClassVar[Tensor] = torch.zeros(0)

    def weigh(self, view: View, updates: Updates) -> Tensor:
        return self.given


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_weights_of_any_precision_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    ends = []
    for kind in (torch.float64, dtype):
        monkeypatch.setattr(Weigher, "given", torch.tensor([1, 0, 1]).to(kind))
        run, _ = one_round(tmp_path, Weigher())
        ends.append(run.server.params)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
