"""Clients that do a part of their local training: the formulas of FLGo's modes, and runs with them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, differ_when_resumed, run_round, settings
from test_partial_work import Slower
from torch import optim

from flsel.config.groups import LocalConfig
from flsel.config.simulated_time import AsyncConfig, TimeConfig
from flsel.errors import UserError
from flsel.local.completeness import ADU, ASU, FSU, PDU, ClientWork, Completeness
from flsel.local.schedule import BatchSpec
from flsel.local.visit import from_one
from flsel.objectives import SCAFFOLD, FedNova
from flsel.rng import generator
from flsel.selector import Need, Plan, View
from flsel.selectors import FedCat, Uniform

BATCHES = BatchSpec(5, epochs=4)
SIZES = np.array([23, 0, 5, 40])  # 5, 0, 1 and 8 batches an epoch


class TooMany(Completeness):
    def steps(self, batches: Any, examples: int, rng: Any) -> int:
        return batches.num_steps(examples) + 1


class Observes(Uniform):
    needs = Need.DELTAS

    def select(self, view: View) -> Plan:
        return Plan.star(view.pool[: view.clients_per_round])

    def observe(self, view: Any, updates: Any, weights: Any) -> None:
        self.saw = updates


def drawn(mode: Completeness, turns: int = 400) -> np.ndarray:
    work = ClientWork(mode, BATCHES, seed=3)
    return np.array(
        [[work.steps(client, turn, int(size)) for client, size in enumerate(SIZES)] for turn in range(turns)]
    )


def test_the_modes_are_their_formulas() -> None:
    """Each draw against the formula with the same generator, and the range that the formula gives."""
    found = drawn(PDU(p=0.6))
    for turn, client in product(range(9), (0, 2, 3)):
        rng, every = generator(3, "completeness", client, turn), 4 * -(-int(SIZES[client]) // 5)
        incomplete, steps = rng.random() < 0.6, max(1, int(rng.integers(every)))
        assert found[turn, client] == (steps if incomplete else every)
    assert set(found[:, 0]) == set(range(1, 21))  # s = 0 counts as 1, and all 20 are the complete ones
    assert 0.3 < (found[:, 0] == 20).mean() < 0.5  # 1 - p
    assert 0.03 < (found[:, 0] == 1).mean() < 0.1  # 2 p / S
    assert not found[:, 1].any()
    assert drawn(PDU(p=0.0))[0].tolist() == [20, 0, 4, 32]

    found = drawn(FSU(), 3)
    shares = [generator(3, "completeness", client).random() for client in range(4)]
    assert (
        found == [max(1, int(20 * shares[0])), 0, max(1, int(4 * shares[2])), max(1, int(32 * shares[3]))]
    ).all()

    found = drawn(ADU(least=2))
    assert set(found[:, 0]) == {10, 15, 20}  # 2, 3 or 4 epochs of 5 batches
    assert set(found[:, 3]) == {16, 24, 32}
    assert np.corrcoef(found[:, 0], found[:, 3])[0, 1] < 0.2
    epochs = [generator(3, "completeness", client).integers(2, 5) for client in (0, 2, 3)]
    assert (drawn(ASU(least=2), 3)[:, [0, 2, 3]] == np.multiply(epochs, [5, 1, 8])).all()


# Ten steps of five examples, each three passes of k + 1 hundredths of a second.
LOCAL = LocalConfig(batch_size=5, epochs=2, last_batch="wrap", optimizer=partial(optim.SGD, lr=0.1))


@pytest.mark.parametrize("backend", ["sequential", "compiled", "lightning"])
def test_a_client_trains_that_many_steps(backend: Any, tmp_path: Path) -> None:
    local = replace(LOCAL, backend=backend)
    config = settings(
        tmp_path, selector=Observes(), completeness=PDU(p=1.0), local=local, precision="64-true"
    )
    server = built(config).server
    outcome = run_round(server, 4)
    work, whole = server.federation.program, built(replace(config, completeness=None)).server.federation
    clients = [path[0] for path in outcome.plan.paths]
    steps = [work.steps(client, 4) for client in clients]
    assert server.selector.saw.steps.tolist() == steps
    assert any(steps[k] < whole.program.steps(client, 4) for k, client in enumerate(clients))
    ends = whole.trainer.train(
        from_one(server.params, clients, 4, whole.program, dict(zip(clients, steps, strict=True)))
    )
    for name, value in server.selector.saw.deltas.items():
        torch.testing.assert_close(value, ends[name] - server.params[name].data, atol=1e-10, rtol=0)


def test_objectives_weigh_by_the_steps_that_were_done(tmp_path: Path) -> None:
    config = settings(
        tmp_path, selector=Observes(), completeness=PDU(p=1.0), local=LOCAL, objective=FedNova()
    )
    server = built(config).server
    outcome, steps = run_round(server), server.selector.saw.steps.double()
    shares = server.federation.sizes[:3].double()
    shares /= shares.sum()
    torch.testing.assert_close(outcome.weights, shares * (shares * steps).sum() / steps)
    assert len(set(steps.tolist())) > 1


def test_scaffold_divides_by_the_steps_that_were_done(tmp_path: Path) -> None:
    config = settings(
        tmp_path, selector=Observes(), completeness=ADU(), objective=SCAFFOLD(), precision="64-true",
        local=replace(LOCAL, optimizer=partial(optim.SGD, lr=0.1)),
    )  # fmt: skip
    server = built(config).server
    run_round(server)
    found, steps = server.federation.program.objective, server.selector.saw.steps
    (slots, controls) = found.slots_, found.controls_
    for name, value in server.selector.saw.deltas.items():
        for k in range(3):
            # Option II of the paper, from controls of zero: minus the update over steps times rate.
            torch.testing.assert_close(controls[name][slots[k]], -value[k] / (int(steps[k]) * 0.1))


@pytest.mark.parametrize("mode", [PDU(), FSU(), ADU(), ASU()])
def test_time_is_that_of_the_steps(mode: Any, tmp_path: Path) -> None:
    config = settings(tmp_path, selector=Observes(), devices=Slower(), completeness=mode, local=LOCAL)
    server = built(config).server
    outcome = run_round(server, 2)
    work = server.federation.program
    seconds = [0.25 + 5 * 3 * 0.01 * (client + 1) * work.steps(client, 2) for client in range(3)]
    assert outcome.time is not None
    assert outcome.time.seconds == pytest.approx(max(seconds), abs=1e-6)
    assert outcome.time.client_seconds == pytest.approx(sum(seconds), abs=1e-5)


def test_a_deadline_stops_what_is_left(tmp_path: Path) -> None:
    rules = TimeConfig(deadline=1.0, late="partial")
    config = settings(
        tmp_path, selector=Observes(), devices=Slower(), completeness=PDU(), local=LOCAL, time=rules
    )
    server = built(config).server
    for round in range(5):
        run_round(server, round)
        work = server.federation.program
        fits = [int(0.7499999 / (0.15 * (client + 1))) for client in range(3)]
        expected = [min(work.steps(client, round), fits[client]) for client in range(3)]
        assert server.selector.saw.steps.tolist() == expected


def test_questions_about_trainings_take_the_same_steps(tmp_path: Path) -> None:
    config = settings(tmp_path, devices=Slower(), completeness=PDU(p=1.0), local=LOCAL, selector=FedCat())
    server = built(config).server
    outcome = run_round(server)
    work = server.federation.program
    seconds = sum(
        0.15 * (client + 1) * work.steps(client, hop)
        for path in outcome.plan.paths for hop, client in enumerate(path)
    )  # fmt: skip
    trainings = sum(map(len, outcome.plan.paths))
    assert outcome.time is not None
    assert outcome.time.client_seconds == pytest.approx(seconds + 0.25 * trainings, abs=1e-4)


@pytest.mark.parametrize("changes", [
    {},
    {"devices": Slower(), "time": TimeConfig(over_selection=1.5, deadline=1.5, late="partial")},
    {"devices": Slower(), "asynchronous": AsyncConfig(concurrency=4, buffer=3)},
])  # fmt: skip
def test_a_resumed_run_has_the_same_bits(changes: dict[str, Any], tmp_path: Path) -> None:
    assert differ_when_resumed(settings(tmp_path, completeness=PDU(), local=LOCAL, **changes), [0, 3]) == []


def test_flights_do_the_steps_of_their_turn(tmp_path: Path) -> None:
    config = settings(
        tmp_path, selector=Observes(), devices=Slower(), completeness=PDU(p=1.0), local=LOCAL,
        asynchronous=AsyncConfig(concurrency=4, buffer=3),
    )  # fmt: skip
    server = built(config).server
    turns = [0] * 8
    for _ in range(4):
        outcome = server.step().outcome
        work, clients = server.federation.program, [path[0] for path in outcome.plan.paths]
        assert server.selector.saw.steps.tolist() == [work.steps(client, turns[client]) for client in clients]
        for client in clients:
            turns[client] += 1


def test_the_seed_alone_decides(tmp_path: Path) -> None:
    first, second = (
        built(settings(tmp_path, completeness=PDU(), selector=selector, local=LOCAL)).server
        for selector in (Uniform(), FedCat())
    )
    steps = [
        [server.federation.program.steps(client, 3) for client in range(8)] for server in (first, second)
    ]
    assert steps[0] == steps[1]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    said = r"local.epochs must be at least completeness.least, got null and 1"
    with pytest.raises(UserError, match=said):
        settings(tmp_path, completeness=ADU())
    with pytest.raises(UserError, match=r"got 2 and 3"):
        settings(tmp_path, completeness=ASU(least=3), local=LOCAL)
    with pytest.raises(UserError, match=r"TooMany.steps must return a whole number from 1 to the 3 steps"):
        settings(tmp_path, completeness=TooMany())
    found = settings(tmp_path, local=LOCAL).with_changes({"completeness": "ADU", "completeness.least": 2})
    assert found.completeness == ADU(least=2)
