"""Clients that return by the deadline what they have done."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, differ_when_resumed, run_round, settings
from torch import optim

from flsel.config.groups import LocalConfig
from flsel.config.simulated_time import TimeConfig
from flsel.devices import Devices, Table
from flsel.errors import UserError
from flsel.local.visit import from_one
from flsel.objectives import FedNova
from flsel.selector import Need, Plan, View
from flsel.selectors import FedCat, Uniform


class Slower(Devices):
    """Client k needs k + 1 hundredths of a second for a forward pass of an example."""

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        return Table(0.01 * np.arange(1, len(sizes) + 1), down=1e9, up=1e9, delay=0.25)


class FirstThree(Uniform):
    needs = Need.DELTAS

    def select(self, view: View) -> Plan:
        return Plan.star([0, 1, 5])

    def observe(self, view: Any, updates: Any, weights: Any) -> None:
        self.saw = updates


# Ten steps of five examples, each three passes: 1.5 (k + 1) seconds.
LOCAL = LocalConfig(batch_size=5, steps=10, last_batch="wrap", optimizer=partial(optim.SGD, lr=0.1))


def hurried(folder: Path, deadline: float, **changes: Any) -> Any:
    rules = TimeConfig(deadline=deadline, late="partial")
    given = {"selector": FirstThree(), "devices": Slower(), "time": rules, "local": LOCAL} | changes
    return settings(folder, **given)


def test_a_client_returns_the_steps_that_fit(tmp_path: Path) -> None:
    server = built(hurried(tmp_path, 2.6)).server
    outcome = run_round(server)
    assert [path[0] for path in outcome.plan.paths] == [0, 1, 5]
    # 2.35 seconds remain: client 1 does 0.3 seconds a step, client 5 0.9.
    assert server.selector.saw.steps.tolist() == [10, 7, 2]
    assert outcome.time is not None
    assert outcome.time.seconds == pytest.approx(2.6, abs=1e-6)
    assert outcome.time.late == ()
    assert outcome.time.client_seconds == pytest.approx(1.75 + 2.6 + 2.6, abs=1e-5)
    federation = server.federation
    for row, (client, most) in enumerate(((0, None), (1, 7), (5, 2))):
        limits = {} if most is None else {client: most}
        visits = from_one(server.params, [client], 0, federation.program, limits)
        end = federation.trainer.train(visits)
        for name, value in server.selector.saw.deltas.items():
            torch.testing.assert_close(value[row], end[name][0] - server.params[name].data)


def test_a_client_without_a_step_is_late(tmp_path: Path) -> None:
    server = built(hurried(tmp_path, 1.0)).server
    outcome = run_round(server)
    assert [path[0] for path in outcome.plan.paths] == [0, 1]
    assert server.selector.saw.steps.tolist() == [4, 2]  # the messages take a little
    assert outcome.time is not None
    assert outcome.time.late == (5,)


def test_a_late_deadline_changes_nothing(tmp_path: Path) -> None:
    first = run_round(built(hurried(tmp_path, 100.0)).server)
    second = run_round(built(settings(tmp_path, selector=FirstThree(), local=LOCAL)).server)
    assert first.delta.keys() == second.delta.keys()
    assert all(torch.equal(value, second.delta[name]) for name, value in first.delta.items())


@pytest.mark.parametrize("backend", ["sequential", "compiled", "lightning"])
def test_every_trainer_stops_early(backend: Any, tmp_path: Path) -> None:
    local = LocalConfig(batch_size=5, steps=10, last_batch="wrap", backend=backend)
    found = run_round(built(hurried(tmp_path, 2.6, local=local, precision="64-true")).server)
    plain = LocalConfig(batch_size=5, steps=10, last_batch="wrap", backend="sequential")
    other = run_round(built(hurried(tmp_path, 2.6, local=plain, precision="64-true")).server)
    for name, value in other.delta.items():
        torch.testing.assert_close(found.delta[name], value, atol=1e-10, rtol=0)


def test_fednova_weighs_by_the_steps_that_were_done(tmp_path: Path) -> None:
    server = built(hurried(tmp_path, 2.6, objective=FedNova())).server
    outcome = run_round(server)
    shares = server.federation.sizes[[0, 1, 5]].double()
    shares /= shares.sum()
    steps = torch.tensor([10.0, 7, 2]).double()
    torch.testing.assert_close(outcome.weights, shares * (shares * steps).sum() / steps)


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    assert differ_when_resumed(hurried(tmp_path, 2.6, selector=Uniform()), [0, 3]) == []


def test_what_has_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"time.late must be drop without time.deadline, got partial"):
        TimeConfig(late="partial")
    with pytest.raises(UserError, match=r"time.late must be drop or rest with FedCat, which chains"):
        run_round(built(hurried(tmp_path, 2.6, selector=FedCat())).server)
