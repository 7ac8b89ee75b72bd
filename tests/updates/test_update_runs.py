"""Runs whose updates are changed on their way: bits, bytes, seconds, resumption, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, differ_when_resumed, run_round, settings
from torch import Tensor

from flsel.commands.cli import main
from flsel.config.groups import LocalConfig
from flsel.config.simulated_time import AsyncConfig, TimeConfig
from flsel.devices import Equal, LogNormal, Zipf
from flsel.errors import UserError
from flsel.execution.run import run
from flsel.objectives import SCAFFOLD, FedNova
from flsel.params import model_bytes, squared_norms
from flsel.partition import IID
from flsel.runner.privacy import privacy
from flsel.selector import Need, Plan, Updates, View
from flsel.selectors import MD, FedAU, FedCat, OptimalSampling, Pisces, PowD, Uniform
from flsel.updates import (
    Aggregate,
    Clip,
    Corrupt,
    GaussianNoise,
    Krum,
    Mean,
    Median,
    MultiKrum,
    Quantise,
    TopK,
    TrimmedMean,
    UpdateStep,
)

NOISE = GaussianNoise(multiplier=0.5, delta=None)
LOCAL = GaussianNoise(multiplier=0.1, where="client", delta=None)
LISTS: dict[str, dict[str, Any]] = {
    "central": {"updates": (Clip(), NOISE)},
    "local": {"updates": (Clip(), LOCAL)},
    "top k": {"updates": (TopK(share=0.1),)},
    "both compressions": {"updates": (TopK(share=0.3), Quantise(bits=3, feedback=True))},
    "sign": {"updates": (Corrupt(kind="sign", share=0.5),), "aggregate": Median()},
    "gaussian": {"updates": (Corrupt(kind="gaussian", share=0.5),), "aggregate": TrimmedMean(0.34)},
    "labels": {"updates": (Corrupt(kind="noisy", share=0.5),), "aggregate": Krum(corrupt=0)},
    "flipped": {"updates": (Corrupt(share=0.25),), "aggregate": MultiKrum(corrupt=0, keep=2)},
}


class Sees(Uniform):
    """Keeps what it observes."""

    needs = Need.DELTAS

    def select(self, view: View) -> Plan:
        return Plan.star(view.pool[: view.clients_per_round])

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        self.saw = updates.deltas


class Doubled(Uniform):
    """Gives weights that sum to two."""

    def weigh(self, view: View, updates: Updates) -> Tensor:
        return 2 * super().weigh(view, updates)


class Half(UpdateStep):
    """A step of one's own."""

    def on_client(self, deltas: Any, senders: Any) -> Any:
        return {name: value / 2 for name, value in deltas.items()}


class First(Aggregate):
    """An aggregate of one's own."""

    def join(self, deltas: Any) -> Any:
        return {name: value[0] for name, value in deltas.items()}


def test_an_empty_list_is_the_run_without_it(tmp_path: Path) -> None:
    plain = built(settings(tmp_path)).server
    assert plain.federation.steps is None
    assert plain.federation.closing.on_client is None
    assert "updates" not in plain.state_dict()


def test_own_classes_by_import_path(tmp_path: Path) -> None:
    changes = {"updates": ["test_update_runs.Half"], "aggregate": "test_update_runs.First"}
    config = settings(tmp_path, selector=Sees()).with_changes(changes)
    plain, other = built(settings(tmp_path, selector=Sees())).server, built(config).server
    run_round(plain)
    outcome = run_round(other)
    for name, value in plain.selector.saw.items():
        torch.testing.assert_close(other.selector.saw[name], value / 2)
        torch.testing.assert_close(outcome.delta[name], value[0] / 2)


@pytest.mark.parametrize("name", LISTS)
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    assert differ_when_resumed(settings(tmp_path, **LISTS[name]), [0, 2, 5]) == []


@pytest.mark.parametrize("name", LISTS)
def test_an_asynchronous_run_resumes_too(name: str, tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        **{key: value for key, value in LISTS[name].items() if key != "aggregate"},
        devices=LogNormal(jitter=0.5),
        asynchronous=AsyncConfig(concurrency=4, buffer=3),
    )
    assert differ_when_resumed(config, [1, 4]) == []


@pytest.mark.parametrize("name", LISTS)
def test_trainers_agree(name: str, tmp_path: Path) -> None:
    ends = []
    for backend in ("sequential", "compiled", "lightning"):
        local = LocalConfig(batch_size=5, steps=3, backend=backend)
        config = settings(tmp_path, **LISTS[name], local=local, precision="64-true", rounds=3)
        server = built(config).server
        for _ in range(3):
            server.step()
        ends.append({key: value.data for key, value in server.params.items()})
    for other in ends[1:]:
        for key, value in ends[0].items():
            torch.testing.assert_close(other[key], value, atol=1e-9, rtol=0)


def test_what_a_selector_observes_is_what_its_client_sends(tmp_path: Path) -> None:
    config = settings(tmp_path, selector=Sees(), updates=(Clip(norm=0.01), NOISE))
    server = built(config).server
    outcome = run_round(server)
    norms = np.sqrt(squared_norms(server.selector.saw))
    np.testing.assert_allclose(norms, 0.01, rtol=1e-5)  # the server's noise comes later
    mean = {name: value.mean(dim=0) for name, value in server.selector.saw.items()}
    drawn = torch.cat([(outcome.delta[name] - mean[name]).flatten() for name in mean]).double()
    sizes = server.federation.sizes[:3].double()
    assert 0.5 < float(drawn.std() / (0.5 * 0.01 * float((sizes / sizes.sum()).max()))) < 2


def test_compression_changes_the_ledger_and_the_clock(tmp_path: Path) -> None:
    devices = Equal(seconds=1e-3, down=1e3, up=1e2)
    plain = built(settings(tmp_path, devices=devices)).server
    small = built(settings(tmp_path, devices=devices, updates=(TopK(share=0.1), Quantise(bits=4)))).server
    whole = model_bytes(plain.params)
    numbers = whole // 4
    sent = math.ceil(round(0.1 * numbers) * 36 / 8) + 4
    for server, up in ((plain, whole), (small, sent)):
        server.step()
        assert server.ledger["models_up"] == 3
        assert server.ledger["bytes_up"] == 3 * up
        assert server.ledger["bytes_down"] == 3 * whole
    saved = plain.elapsed.seconds - small.elapsed.seconds
    assert saved == pytest.approx((whole - sent) / 1e2)


def test_bytes_of_flights(tmp_path: Path) -> None:
    changes = {"devices": Equal(up=1e2), "asynchronous": AsyncConfig(concurrency=4, buffer=2)}
    plain, small = (
        built(settings(tmp_path, **changes, updates=steps)).server for steps in ((), (TopK(share=0.1),))
    )
    plain.step()
    small.step()
    assert small.ledger["models_up"] == plain.ledger["models_up"]
    ratio = small.ledger["bytes_up"] / plain.ledger["bytes_up"]
    assert ratio == pytest.approx(small.federation.steps.message.bytes / model_bytes(plain.params))
    assert small.elapsed.seconds < plain.elapsed.seconds


def test_late_clients_have_sent_their_update(tmp_path: Path) -> None:
    """Over-selection: six clients are asked, and the first three count; all six send, at the same cost."""
    devices, rules = LogNormal(), TimeConfig(over_selection=2.0)
    steps = (Clip(), GaussianNoise(where="client", delta=None), TopK(share=0.1, feedback=False))
    plain, small = (
        built(settings(tmp_path, devices=devices, time=rules, updates=given)).server for given in ((), steps)
    )
    for server, up in ((plain, model_bytes(plain.params)), (small, small.federation.steps.message.bytes)):
        outcome = server.step().outcome
        assert outcome.time is not None
        assert (len(outcome.plan), len(outcome.time.late)) == (3, 3)
        assert server.ledger["bytes_up"] == 6 * up
    late = set(outcome.time.late)
    assert {client for client, sent in enumerate(small.federation.steps.sent) if sent} >= late
    assert small.federation.steps.sent.sum() == 6


def test_every_update_of_a_flight_counts_for_local_privacy(tmp_path: Path) -> None:
    """A fast client may be twice in a buffer, and has then sent two updates."""
    config = settings(
        tmp_path, devices=Zipf(s=1.2), updates=(Clip(), LOCAL), clients=6,
        asynchronous=AsyncConfig(concurrency=4, buffer=4, bound=1),
    )  # fmt: skip
    server, twice = built(config).server, False
    for _ in range(6):
        clients = [path[0] for path in server.step().outcome.plan.paths]
        twice |= len(set(clients)) < len(clients)
    assert twice
    flights = server.flights
    assert server.federation.steps.sent.tolist() == [
        turns - (client in flights.running) for client, turns in enumerate(flights.turns)
    ]


def test_the_same_clients_are_corrupt_for_every_selector(tmp_path: Path) -> None:
    step = Corrupt(kind="flipped", share=0.25)
    clean = built(settings(tmp_path)).data.population
    for selector in (Uniform(), PowD()):
        found = built(settings(tmp_path, selector=selector, updates=(step,))).data.population
        changed = [
            k for k, shard in enumerate(found.shards) if not torch.equal(found.y[shard], clean.y[shard])
        ]
        assert changed == step.clients(8, 0).tolist()
        for client in changed:
            assert torch.equal(found.y[found.shards[client]], 3 - clean.y[clean.shards[client]])


def test_a_median_withstands_what_the_mean_does_not(tmp_path: Path) -> None:
    attack = (Corrupt(kind="sign", share=0.25, scale=20.0),)
    config = settings(tmp_path, clients_per_round=8, rounds=15, updates=attack, partition=IID())
    plain = built(replace(config, updates=())).server
    losses = []
    for server in (plain, built(config).server, built(replace(config, aggregate=Median())).server):
        for _ in range(15):
            record = server.step()
        assert record.metrics is not None
        losses.append(record.metrics["test/loss"])
    assert losses[2] < losses[0] + 0.5
    assert losses[1] > losses[2] + 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"aggregate": Median(), "selector": MD()}, "aggregate must be Mean with MD, got Median"),
        ({"aggregate": Median(), "selector": FedAU()}, "with FedAU, got .* for the rounds between"),
        ({"aggregate": Median(), "selector": Pisces()}, "with Pisces, .* selector.discount is 0"),
        ({"aggregate": Median(), "objective": FedNova()}, "aggregate must be Mean with objective FedNova"),
        (
            {"aggregate": Median(), "selector": Uniform(weights="scaled")},
            "must be Mean with Uniform",
        ),
        (
            {"aggregate": Krum(corrupt=2)},
            r"must be at least 7 with aggregate Krum, got 3",
        ),
        (
            {"aggregate": Median(), "updates": (Clip(), NOISE)},
            "must be Mean with noise at the server",
        ),
        ({"updates": (TopK(),), "objective": SCAFFOLD()}, "with objective SCAFFOLD, since what it keeps"),
        ({"updates": (TopK(),), "selector": OptimalSampling()}, r"\(feedback\) with OptimalSampling"),
        ({"updates": (NOISE,)}, r"updates\[0\] GaussianNoise must follow"),
    ],
)
def test_what_has_no_sense_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        built(settings(tmp_path, **changes))


def test_what_shows_in_a_round_is_refused_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"with FedCat, which chains"):
        run_round(built(settings(tmp_path, selector=FedCat(), updates=(Clip(),))).server)
    with pytest.raises(UserError, match=r"must be Mean with Doubled, got Median: its weights sum to 2"):
        run_round(built(settings(tmp_path, selector=Doubled(), aggregate=Median())).server)
    built(settings(tmp_path, selector=Pisces(discount=0.0), aggregate=Median())).server.step()


def test_labels_may_change_where_updates_may_not(tmp_path: Path) -> None:
    for changes in ({"objective": SCAFFOLD()}, {"selector": FedCat()}):
        built(settings(tmp_path, updates=(Corrupt(),), **changes)).server.step()


def test_noise_needs_a_model_that_is_sent_with_noise_as_a_whole(tmp_path: Path) -> None:
    config = settings(tmp_path, model=torch.nn.BatchNorm1d, updates=(Clip(), NOISE))
    with pytest.raises(UserError, match=r"without running statistics, .* use GroupNorm"):
        built(config.with_changes({"model": "test_update_runs.Normed"}))


class Normed(torch.nn.Sequential):
    def __init__(self, num_classes: int) -> None:
        super().__init__(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, num_classes))


def test_running_statistics_are_sent_whole(tmp_path: Path) -> None:
    config = settings(tmp_path, selector=Sees(), updates=(TopK(share=0.1, feedback=False),))
    plain = built(replace(config, updates=()).with_changes({"model": "test_update_runs.Normed"})).server
    small = built(config.with_changes({"model": "test_update_runs.Normed"})).server
    run_round(plain)
    run_round(small)
    for name in ("0.running_mean", "0.running_var"):
        assert torch.equal(plain.selector.saw[name], small.selector.saw[name])
    assert int((small.selector.saw["1.weight"] != 0).sum()) < 3 * 8 * 4 / 2


def test_privacy_is_reported_by_what_the_selector_did(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    from flsel.updates.accountant import epsilon

    steps = (Clip(), GaussianNoise(multiplier=4.0))
    result = run(settings(tmp_path, updates=steps, rounds=4))
    (found,) = result.summary["privacy"]
    assert found["epsilon"] == epsilon(4.0, 1e-5, [(3, 8, 4)])
    assert (found["rounds"], found["not_covered"]) == (4, [])
    assert found["sampling"] == "uniform without replacement, at most 3 of 8 clients"
    result = run(settings(tmp_path, updates=steps, rounds=4, selector=PowD()))
    (found,) = result.summary["privacy"]
    assert found["epsilon"] == epsilon(4.0, 1e-5, [(8, 8, 4)])
    assert found["sampling"].startswith("no amplification: PowD")
    assert found["not_covered"] == ["LOSSES"]


def test_local_privacy_counts_the_updates_of_the_busiest_client(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    from flsel.updates.accountant import epsilon

    server = built(settings(tmp_path, updates=(Clip(), GaussianNoise(multiplier=9.0, where="client")))).server
    for _ in range(6):
        server.step()
    (found,) = privacy(server.federation.steps, server.selector)
    assert found["rounds"] == int(server.counts.max()) == int(server.federation.steps.sent.max())
    assert found["epsilon"] == epsilon(9.0, 1e-5, [(1, 1, found["rounds"])])


def test_without_the_accountant_epsilon_is_refused_and_null_runs(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("flsel.updates.accountant.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"updates\[1\].delta must be null without the package dp-accounting"):
        built(settings(tmp_path, updates=(Clip(), GaussianNoise())))
    assert run(settings(tmp_path, updates=(Clip(), NOISE))).summary["privacy"] == []


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--clients", "6", "--clients_per_round", "3", "--rounds", "2", "--quiet", "true"]
    words += ["--output.dir", str(tmp_path), "--output.name", "run", "--aggregate", "Median"]
    steps = json.dumps([{"class_path": "Clip", "init_args": {"norm": 0.5}}, "Quantise"])
    assert main(["train", *words, "--updates", steps]) == 0
    with pytest.raises(SystemExit):
        main(["train", "--updates.help"])
    assert "TopK" in capsys.readouterr().out


def test_fednova_is_its_papers_formula(tmp_path: Path) -> None:
    local = LocalConfig(batch_size=5, epochs=2)
    config = settings(tmp_path, selector=Sees(), objective=FedNova(), local=local, precision="64-true")
    server = built(config).server
    outcome = run_round(server)
    sizes = server.federation.sizes[:3].double()
    steps = 2 * (sizes / 5).ceil()
    shares = sizes / sizes.sum()
    effective = (shares * steps).sum()
    assert len(set(steps.tolist())) > 1
    for name, value in server.selector.saw.items():
        expected = effective * torch.tensordot(shares / steps, value, dims=1)
        torch.testing.assert_close(outcome.delta[name], expected)


def test_fednova_with_equal_work_is_fedavg(tmp_path: Path) -> None:
    plain, other = (built(settings(tmp_path, objective=o)).server for o in (FedNova(), SCAFFOLD()))
    assert run_round(plain).weights.sum() == pytest.approx(1.0)
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    # The example of the paper's Figure 2: two clients with equal data and 1 and 5 steps.
    even = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert FedNova().reweigh(even, torch.tensor([1.0, 5.0]).double()).tolist() == pytest.approx([1.5, 0.3])
    assert FedNova().reweigh(weights, torch.full((3,), 7.0).double()).tolist() == weights.tolist()
    assert FedNova().reweigh(even, torch.tensor([0.0, 4.0]).double()).tolist() == [0.0, 0.25]
    assert other.objective.reweigh(weights, weights) is weights


def test_the_mean_is_the_default() -> None:
    assert not Mean().robust
