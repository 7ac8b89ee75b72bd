"""Parts of the model that stay with the client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import built, differ_when_resumed, run_round, settings
from torch import nn

from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.config.simulated_time import AsyncConfig
from flsel.devices import Equal, LogNormal
from flsel.errors import UserError
from flsel.objectives import SCAFFOLD
from flsel.params import model_bytes
from flsel.selector import Need, Plan, Updates, View
from flsel.selectors import FedCat, FedPNS, HiCS, PowD, Uniform
from flsel.updates import TopK


class Normed(nn.Sequential):
    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, num_classes))


class Plain(nn.Sequential):
    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, num_classes))


class Scripted(Uniform):
    def select(self, view: View) -> Plan:
        return Plan.star([[0, 1, 2], [0, 3, 4], [0, 1, 1]][view.round % 3])


class Watching(Scripted):
    needs = Need.OWN_LOSS

    def observe(self, view: View, updates: Updates, weights: torch.Tensor) -> None:
        self.saw = updates.own_loss


def personal(folder: Path, *patterns: str, **changes: Any) -> Any:
    local = LocalConfig(batch_size=5, steps=3, **{"personal": patterns, **changes.pop("local", {})})
    config = settings(folder, local=local, **changes)
    return config.with_changes({"model": "test_personal_parts.Normed"})


def test_clients_own_test_data_are_measured_with_their_own_parts(tmp_path: Path) -> None:
    config = personal(tmp_path, "2.*", selector=Scripted())
    config = config.with_changes({"data.client_test": 0.3, "evaluation.per_client": True})
    made = built(config)
    made.server.step()
    own, hits = made.data.own_test, []
    assert own is not None
    for client, part in enumerate(made.data.client_tests or ()):
        with made.program.measuring(made.program.of_client(made.server.params, client)):
            x, y = made.program.ready(own.read(part))
            hits.append(float((made.program.outputs(x).argmax(dim=1) == y).double().mean()))
    found = made.server.evaluate(torch.empty(0, dtype=torch.int64))
    assert found["client_test/accuracy_mean"] == pytest.approx(sum(hits) / 8)


def test_personal_parts_stay_with_their_client_and_are_not_billed(tmp_path: Path) -> None:
    server = built(
        personal(tmp_path, "2.*", "1.running*", selector=Scripted(), devices=Equal(up=10.0))
    ).server
    program = server.federation.program
    names = {"2.weight", "2.bias", "1.running_mean", "1.running_var"}
    assert program.personal is not None
    assert set(program.personal.names) == names
    assert server.params.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    first = {client: program.of_client(server.params, client) for client in range(8)}
    trained = server.federation.trainer.train(
        [visit for visit in server.open().visits(0)]  # type: ignore[union-attr]
    )
    server.step()
    for row, client in enumerate((0, 1, 2)):
        own = program.of_client(server.params, client)
        assert all(torch.equal(own[name], trained[name][row]) for name in names)
    untrained = program.of_client(server.params, 5)
    assert all(torch.equal(untrained[name], first[5][name]) for name in names)
    shared = sum(value.numel() * 4 for name, value in first[0].items() if name not in names)
    assert model_bytes(server.params) == shared
    assert server.ledger["bytes_up"] == server.ledger["bytes_down"] == 3 * shared
    # Client 0 goes on from its own parts.
    job = server.open()
    start = job.visits(0)[0].start
    assert all(torch.equal(start[name], trained[name][0]) for name in names)
    server.step()
    server.step()  # a client twice in a round


def test_without_shared_parts_of_others_a_client_trains_alone(tmp_path: Path) -> None:
    """The head of a client depends on its own trainings and the shared part only."""
    one = built(personal(tmp_path, "0.*", "1.*", selector=Scripted(), clients_per_round=3)).server
    two = built(personal(tmp_path, "0.*", "1.*", selector=Scripted(), clients_per_round=3)).server
    one.step()
    run_round(two)
    left, right = (s.federation.program.of_client(s.params, 2) for s in (one, two))
    assert all(torch.equal(left[name], right[name]) for name in left if name.startswith(("0.", "1.")))


@pytest.mark.parametrize("backend", ["sequential", "compiled", "lightning"])
def test_trainers_agree(backend: Any, tmp_path: Path) -> None:
    ends = []
    for chosen in (backend, "sequential"):
        config = personal(tmp_path, "2.*", local={"backend": chosen}, precision="64-true", rounds=3)
        server = built(config.with_changes({"model": "test_personal_parts.Plain"})).server
        for _ in range(3):
            server.step()
        program = server.federation.program
        ends.append([program.of_client(server.params, client) for client in range(8)])
    for left, right in zip(*ends, strict=True):
        for name, value in right.items():
            torch.testing.assert_close(left[name], value, atol=1e-9, rtol=0)


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    config = personal(tmp_path, "1.*", selector=PowD(), updates=(TopK(share=0.5),))
    assert differ_when_resumed(config, [0, 2, 4]) == []


def test_clients_are_measured_with_their_own_parts(tmp_path: Path) -> None:
    config = personal(tmp_path, "2.*", evaluation=EvaluationConfig(per_client=True))
    server = built(config).server
    server.step()
    _, shares = server.evaluator.on_clients(server.params)
    program = server.federation.program
    for client, shard in enumerate(program.population.shards):
        program.load(program.of_client(server.params, client))
        with program.measuring():
            x, y = program.batch(shard)
            found = (program.task(x).argmax(dim=1) == y).double().mean()
        assert float(shares[client]) == pytest.approx(float(found))


def test_a_clients_own_tests_are_measured_with_its_parts(tmp_path: Path) -> None:
    config = personal(tmp_path, "2.*", evaluation=EvaluationConfig(per_client=True))
    changes = {"data.client_test": 0.25, "model": "test_personal_parts.Plain"}
    server = built(config.with_changes(changes)).server
    for _ in range(2):
        server.step()
    data, program = server.federation.data, server.federation.program
    losses, shares = server.evaluator.on_client_tests(server.params, data)
    assert data.own_test is not None
    assert data.client_tests is not None
    for client, own in enumerate(data.client_tests):
        program.load(program.of_client(server.params, client))
        with program.measuring():
            outputs, y = program.outputs(data.own_test.x[own]), data.own_test.y[own]
            loss, right = nn.functional.cross_entropy(outputs, y), (outputs.argmax(dim=1) == y).double()
        assert float(losses[client]) == pytest.approx(float(loss), rel=1e-5)
        assert float(shares[client]) == pytest.approx(float(right.mean()))


def test_own_losses_are_those_of_the_model_before_training(tmp_path: Path) -> None:
    server = built(personal(tmp_path, "2.*", selector=Watching())).server
    server.step()
    visits = server.open().visits(0)  # type: ignore[union-attr]
    expected = server.federation.trainer.losses(visits)
    server.step()
    torch.testing.assert_close(server.selector.saw, expected)


@pytest.mark.parametrize(
    ("patterns", "changes", "said"),
    [
        (("head.*",), {}, r"local.personal must match tensors of the model, and head.\* matches none"),
        (("*.2.*",), {}, r"\*.2.\* matches none: its names are such as 2.weight"),
        (("2.wieght",), {}, r"2.wieght matches none: its names are such as 2.weight"),
        (("*",), {}, "must leave something to be sent"),
        (("2.*",), {"selector": FedPNS()}, "must be empty with FedPNS, which measures"),
        (("2.*",), {"selector": HiCS()}, "must be empty with HiCS, which reads the output layer's update"),
        (("2.*",), {"objective": SCAFFOLD()}, "must be empty with objective SCAFFOLD"),
        (
            ("2.*",),
            {"devices": LogNormal(), "asynchronous": AsyncConfig(concurrency=4)},
            "must be empty with asynchronous.concurrency",
        ),
    ],
)
def test_what_has_no_sense_is_refused(patterns: Any, changes: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        built(personal(tmp_path, *patterns, **changes))


def test_chains_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"local.personal must be empty with FedCat, which chains"):
        run_round(built(personal(tmp_path, "2.*", selector=FedCat())).server)


def test_no_patterns_are_the_run_without_them(tmp_path: Path) -> None:
    first, second = built(personal(tmp_path)).server, built(replace(personal(tmp_path), seed=0)).server
    assert first.federation.program.personal is None
    assert "personal" not in first.state_dict()
    assert all(torch.equal(value, second.params[name]) for name, value in first.params.items())
