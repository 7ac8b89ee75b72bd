"""A selector in a Flower app of one's own, with nodes in this process; needs flwr (make test-flower)."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import built, settings
from torch import optim

import flsel.flower.members
import flsel.selectors
from flsel.config.groups import LocalConfig
from flsel.errors import UserError
from flsel.selector import Need, Selector
from flsel.selectors import AFL, DivFL, FedCat, FedCor, FedGS, FedPNS, PowD, Uniform

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from flower_app import OwnApp
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy

from flsel.flower import SelectorStrategy, answer
from flsel.flower.contacts import Contacts
from flsel.flower.wire import LostError

EVERY = [getattr(flsel.selectors, name) for name in flsel.selectors.__all__]
TIMED = [cls for cls in EVERY if Need.DURATIONS in cls().needs]
LOCAL = LocalConfig(batch_size=5, epochs=1, backend="sequential", optimizer=partial(optim.SGD, lr=0.1))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> OwnApp:
    return OwnApp(built(settings(tmp_path_factory.mktemp("app"), local=LOCAL)))


def strategy(own: OwnApp, selector: Selector, **more: Any) -> SelectorStrategy:
    """A strategy for the app, with what the run's server can measure."""
    measured = built(settings(Path(), local=LOCAL, selector=Uniform())).server.evaluator

    def loss(arrays: ArrayRecord) -> float:
        return measured.server_loss(dict(arrays.to_torch_state_dict()))

    def outputs(arrays: ArrayRecord) -> list[float]:
        stack = {name: value[None] for name, value in arrays.to_torch_state_dict().items()}
        return list(measured.noise_outputs(stack)[0].tolist())

    given = {"clients": 8, "clients_per_round": 3, "wait": 0.0, "timeout": 5.0, "fraction_evaluate": 0.0}
    if type(selector).__name__ == "Complete":
        given["clients_per_round"] = 8
    return SelectorStrategy(selector, server_loss=loss, noise_outputs=outputs, **(given | more))


def model(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in arrays.items()}


def close(one: ArrayRecord, other: ArrayRecord, tolerance: float = 0.0) -> bool:
    ours, theirs = model(one), model(other)
    return ours.keys() == theirs.keys() and all(
        np.allclose(ours[name], theirs[name], rtol=tolerance, atol=tolerance) for name in ours
    )


@pytest.mark.parametrize(
    "selector",
    [cls() for cls in EVERY if cls not in TIMED and Need.TRUE_MODELS not in cls().needs],
    ids=lambda s: type(s).__name__,
)
def test_rounds_in_a_flower_app_equal_flsel_train(own: OwnApp, tmp_path: Path, selector: Selector) -> None:
    asked = strategy(own, selector)
    result = asked.start(own.grid(), own.initial(), num_rounds=6)
    config = settings(tmp_path, local=LOCAL, selector=selector, clients_per_round=asked.clients_per_round)
    server = built(config).server
    while not server.finished:
        server.step()
    here = ArrayRecord({name: value.detach() for name, value in server.params.items()})
    # Losses of clients are means of their examples' losses, summed in another order.
    assert close(result.arrays, here, 1e-6)
    assert asked.state_dict()["counts"].tolist() == server.counts.tolist()
    for name in ("trainings", "shadow_trainings", "models_down", "bytes_down"):
        more = asked.ledger[name] - server.ledger[name]
        # Participants' losses are asked of them in a message of its own, with the model.
        assert more == 0 or (more > 0 and bool((Need.OWN_LOSS | Need.SQUARED_LOSS) & selector.needs))


@pytest.mark.parametrize("selector", [cls() for cls in TIMED], ids=lambda s: type(s).__name__)
def test_durations_are_measured(own: OwnApp, selector: Selector) -> None:
    asked = strategy(own, selector)
    result = asked.start(own.grid(), own.initial(), num_rounds=4)
    took = asked.state_dict()["durations"]
    assert bool(((took > 0) & (took < 5)).all()), "each client was timed once at least"
    assert len(result.train_metrics_clientapp) == 4
    assert result.train_metrics_clientapp[4]["ledger/shadow_trainings"] == 8


@pytest.mark.parametrize(
    "selector",
    [cls() for cls in EVERY if Need.TRUE_MODELS not in cls().needs],
    ids=lambda s: type(s).__name__,
)
def test_every_selector_survives_nodes_that_fail(own: OwnApp, selector: Selector) -> None:
    grid, asked = own.grid(), strategy(own, selector, clients_per_round=8, optimizer=optim.Adam)
    grid.dead, grid.refused, grid.fault = {101}, {103}, poisoned({102})
    grid.fault = greeted_first(grid, grid.fault)
    result = asked.start(grid, own.initial(), num_rounds=6)
    assert all(np.isfinite(value).all() for value in model(result.arrays).values())
    lost = [client for step in asked.history for client in step.lost]
    dropped = [client for step in asked.history for client in step.dropped]
    assert asked.ledger["dropped_updates"] >= len(dropped)
    assert set(lost) <= {1, 3}
    assert not {1, 2, 3} & {c for step in asked.history for c in step.clients}
    buffer = io.BytesIO()
    torch.save(asked.state_dict(), buffer)
    buffer.seek(0)
    torch.load(buffer, weights_only=True)


def poisoned(nodes: set[int]) -> Any:
    def fault(message: Message, reply: Message) -> Message:
        if message.metadata.dst_node_id in nodes and reply.has_content() and reply.content.array_records:
            for name, arrays in reply.content.array_records.items():
                bad = {key: Array(np.full_like(value.numpy(), np.nan)) for key, value in arrays.items()}
                reply.content[name] = ArrayRecord(bad)
        return reply

    return fault


def greeted_first(grid: Any, fault: Any) -> Any:
    """Let every node say hello before any of them fails."""
    dead, refused = grid.dead, grid.refused
    grid.dead, grid.refused = set(), set()
    hellos = []

    def after(message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type == "query.flsel_hello":
            hellos.append(message)
            if len(hellos) == len(grid.apps):
                grid.dead, grid.refused = dead, refused
            return reply
        return fault(message, reply) if fault else reply  # type: ignore[no-any-return]

    return after


@pytest.mark.parametrize(
    "selector", [FedCor(warmup=1), FedCat(), AFL(), FedGS(), Uniform()], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("optimizer", [None, partial(optim.SGD, lr=0.7, momentum=0.9)])
def test_a_resumed_strategy_goes_on_exactly(own: OwnApp, selector: Selector, optimizer: Any) -> None:
    saved: dict[int, tuple[bytes, ArrayRecord]] = {}
    whole = strategy(own, selector, optimizer=optimizer)

    def save(round: int, arrays: ArrayRecord) -> None:
        buffer = io.BytesIO()
        if round:
            torch.save(whole.state_dict(), buffer)
            saved[round] = (buffer.getvalue(), arrays)

    expected = whole.start(own.grid(), own.initial(), num_rounds=6, evaluate_fn=save)
    for round in (1, 3, 4):
        state, arrays = saved[round]
        again = strategy(own, replace(selector), optimizer=optimizer)
        again.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        assert again.round <= round
        found = again.start(own.grid(), arrays, num_rounds=6 - again.round)
        assert close(found.arrays, expected.arrays)
        assert again.state_dict()["counts"].tolist() == whole.state_dict()["counts"].tolist()


def test_flowers_own_loop_runs_it_too(own: OwnApp) -> None:
    ours = strategy(own, FedCor(warmup=1)).start(own.grid(), own.initial(), num_rounds=4)
    theirs = strategy(own, FedCor(warmup=1), rounds=4)
    assert close(Strategy.start(theirs, own.grid(), own.initial(), num_rounds=4).arrays, ours.arrays)
    with pytest.raises(UserError, match="rounds must be given to SelectorStrategy"):
        Strategy.start(strategy(own, FedCor(warmup=1)), own.grid(), own.initial(), num_rounds=4)


def test_a_late_node_is_left_out_after_its_second_failure(
    own: OwnApp, caplog: pytest.LogCaptureFixture
) -> None:
    grid, asked = own.grid(), strategy(own, Uniform(), clients_per_round=8, timeout=0.25)
    silence = greeted_first(grid, None)

    def fault(message: Message, reply: Message) -> Message | None:
        late = message.metadata.dst_node_id == 104 and message.metadata.message_type == "train"
        return None if late else silence(message, reply)

    grid.fault = fault
    with caplog.at_level(logging.WARNING, "flsel"):
        result = asked.start(grid, own.initial(), num_rounds=5)
    assert [step.lost for step in asked.history] == [[4], [4], [], [4], []]
    assert [record.getMessage() for record in caplog.records] == [
        "client 4 gave no answer in round 0: no answer within 0.25 s",
        "client 4 gave no answer in round 1: no answer within 0.25 s; it is left out for 1 round",
        "client 4 gave no answer in round 3: no answer within 0.25 s; it is left out for 2 rounds",
    ]
    assert result.train_metrics_clientapp[1]["lost"] == [4]
    assert result.train_metrics_clientapp[5]["ledger/dropped_updates"] == 3
    assert result.train_metrics_clientapp[5]["train-loss"] == pytest.approx(2.0)


def test_an_answer_ends_the_rounds_without_a_node() -> None:
    kept = Contacts()
    assert [kept.failed(7, round) for round in (0, 1, 3, 6, 11, 20, 37)] == [0, 1, 2, 4, 8, 16, 16]
    assert not kept.free(7, 53)
    assert kept.free(7, 54)
    assert kept.heard(7, 38, error="") == ""
    assert kept.free(7, 38)
    assert kept.failed(7, 39) == 0


def test_a_round_that_nobody_answers_keeps_the_model(own: OwnApp, caplog: pytest.LogCaptureFixture) -> None:
    grid = own.grid()
    grid.fault = greeted_first(grid, poisoned(set(grid.apps)))
    asked = strategy(own, Uniform())
    with caplog.at_level(logging.WARNING, "flsel"):
        result = asked.start(grid, own.initial(), num_rounds=2)
    assert len(result.arrays) == 0
    assert "round 2: none of 3 clients returned a usable model within 5 s" in caplog.text
    assert asked.ledger["dropped_updates"] == 6


def test_a_client_that_comes_back_on_another_node_is_the_same(own: OwnApp) -> None:
    grid, asked = own.grid(), strategy(own, AFL())
    before = asked.start(grid, own.initial(), num_rounds=2)
    grid.apps[900] = grid.apps.pop(102)
    grid.apps[901] = (own.app, {"partition-id": 99})
    again = strategy(own, AFL())
    again.load_state_dict(asked.state_dict())
    found = again.start(grid, before.arrays, num_rounds=2)
    there = strategy(own, AFL()).start(own.grid(), own.initial(), num_rounds=4)
    assert close(found.arrays, there.arrays)
    assert again.rounds == 4
    assert 901 not in [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "train"]
    assert again.state_dict()["members"]["names"] == [str(i) for i in range(8)]


def test_who_is_not_connected_is_not_available(own: OwnApp) -> None:
    grid, asked = own.grid(), strategy(own, Uniform(), clients_per_round=8)

    def leave(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            gone.update({node: grid.apps.pop(node) for node in (100, 105)})
        if round == 2:
            grid.apps.update(gone)

    gone: dict[int, Any] = {}
    asked.start(grid, own.initial(), num_rounds=3, evaluate_fn=leave)
    assert [sorted(step.clients) for step in asked.history] == [
        [*range(8)],
        [1, 2, 3, 4, 6, 7],
        [*range(8)],
    ]
    grid.apps.clear()
    with pytest.raises(LostError, match="round 3 failed: no client is connected for 0 s"):
        asked.start(grid, own.initial(), num_rounds=1)


def test_a_node_that_missed_its_greeting_is_greeted_again(own: OwnApp) -> None:
    grid, asked = own.grid(), strategy(own, Uniform(), clients_per_round=8)

    def come_back(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.apps[900] = grid.apps.pop(102)
            grid.dead = {900}
        if round == 2:
            grid.dead = set()

    asked.start(grid, own.initial(), num_rounds=3, evaluate_fn=come_back)
    assert [2 in step.clients for step in asked.history] == [True, False, True]
    assert all(step.arrays is None for step in asked.history)


def test_evaluations_are_those_of_the_app(own: OwnApp) -> None:
    grid, asked = own.grid(), strategy(own, Uniform(), fraction_evaluate=0.5)
    result = asked.start(grid, own.initial(), num_rounds=3)
    assert len(grid.asked("evaluate")) == 12
    assert result.evaluate_metrics_clientapp[3]["loss"] < result.evaluate_metrics_clientapp[1]["loss"]


def test_messages_are_those_of_fedavg(own: OwnApp) -> None:
    grid, asked = own.grid(), strategy(own, FedCor(warmup=1, delta_t=1))
    asked.start(grid, own.initial(), num_rounds=3)
    sent = [m for m in grid.sent if m.metadata.message_type == "train"]
    probes = [m for m in sent if m.content["config"].get("flsel-probe")]
    assert len(sent) - len(probes) == 9
    assert len(probes) == asked.ledger["shadow_trainings"] > 0
    assert {frozenset(m.content) for m in sent} == {frozenset(("arrays", "config"))}
    assert {m.metadata.ttl for m in grid.sent} == {5.0}


def test_label_counts_leave_a_node_only_if_they_are_needed(own: OwnApp) -> None:
    said: list[Message] = []

    def listen(message: Message, reply: Message) -> Message:
        said.extend([reply] if message.metadata.message_type == "query.flsel_hello" else [])
        return reply

    for selector, told in ((Uniform(), False), (FedGS(), Need.LABELS in FedGS().needs)):
        grid = own.grid()
        grid.fault = listen
        strategy(own, selector).start(grid, own.initial(), num_rounds=1)
        assert {"labels" in reply.content["flsel"] for reply in said} == {told}
        said.clear()


def wrong_losses(own: OwnApp) -> ClientApp:
    app = ClientApp()
    app.train()(own.train)
    answer(app, labels=own.labels)
    return app


def test_questions_that_nobody_can_answer_are_refused(own: OwnApp) -> None:
    grid = own.grid()
    grid.apps[103] = (wrong_losses(own), {"partition-id": 3})
    for selector, words in ((PowD(), "losses"), (AFL(), "losses"), (DivFL(), "gradients")):
        if Need.GRADIENTS not in DivFL().needs and words == "gradients":
            continue
        with pytest.raises(UserError, match=f"asks clients for their {words}, and client 3 does not answer"):
            strategy(own, selector).start(grid, own.initial(), num_rounds=1)
    with pytest.raises(UserError, match="FedPNS asks the server itself: give SelectorStrategy server_loss="):
        SelectorStrategy(FedPNS(), clients=8, clients_per_round=3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda apps, own: apps.pop(104),
            "clients must be the number of clients, got 8, and 7 came within 0 s",
        ),
        (
            lambda apps, own: apps.update({200: (own.app, {"partition-id": 0, "client-id": "x"})}),
            "clients must be the number of clients, got 8, and 9 came",
        ),
        (
            lambda apps, own: apps.update({200: (own.app, {"partition-id": 2})}),
            "both are client 2: give each SuperNode a partition-id or client-id of its own",
        ),
        (
            lambda apps, own: apps.update({103: (ClientApp(), {})}),
            "node 103 cannot take part: Flower error 2",
        ),
    ],
)
def test_clients_that_do_not_fit_are_refused(own: OwnApp, change: Any, reason: str) -> None:
    grid = own.grid()
    change(grid.apps, own)
    with pytest.raises(UserError, match=reason):
        strategy(own, FedGS()).start(grid, own.initial(), num_rounds=1)


def test_another_protocol_on_a_node_is_refused_at_once(own: OwnApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flsel.flower.members, "PROTOCOL", 9)
    with pytest.raises(UserError, match=r"node 100 .* must speak version 9 of flsel's protocol .* got 1"):
        strategy(own, Uniform(), wait=60.0).start(own.grid(), own.initial(), num_rounds=1)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"clients": 0}, "clients must be a whole number >= 1, got 0"),
        ({"clients_per_round": 9}, r"clients_per_round must be at most clients \(8\), got 9"),
        ({"timeout": -1.0}, "timeout must be a finite number > 0, got -1.0"),
        ({"output_layer": ("last", None)}, "output_layer must name arrays of the model, got last"),
        ({"num_classes": 1}, "num_classes must be above every label, got 1"),
    ],
)
def test_wrong_arguments_get_one_sentence(own: OwnApp, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        strategy(own, FedGS() if "num_classes" not in given else LABELLED, **given).start(
            own.grid(), own.initial(), num_rounds=1
        )


LABELLED = next(cls() for cls in EVERY if cls().needs == Need.LABELS)


@pytest.mark.parametrize("selector", ["FedCor", FedCor])
def test_a_selector_must_be_one(selector: Any) -> None:
    with pytest.raises(UserError, match=r"selector must be a selector, such as PowD\(\), got"):
        SelectorStrategy(selector, clients=8, clients_per_round=3)


def test_losses_are_those_of_examples(own: OwnApp, caplog: pytest.LogCaptureFixture) -> None:
    app, grid = ClientApp(), own.grid()
    app.train()(own.train)
    answer(app, labels=own.labels, losses=lambda arrays, context: torch.tensor(0.3))
    grid.apps[103] = (app, {"partition-id": 3})
    with caplog.at_level(logging.WARNING, "flsel"):
        strategy(own, PowD(d=8)).start(grid, own.initial(), num_rounds=1)
    assert "losses must return the loss of each training example, got one number." in caplog.text


def test_an_answer_larger_than_the_model_is_refused(own: OwnApp, caplog: pytest.LogCaptureFixture) -> None:
    grid = own.grid()

    def fault(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 102:
            big = {
                name: Array(np.zeros((9, *array.shape))) for name, array in reply.content["arrays"].items()
            }
            reply.content["arrays"] = ArrayRecord(big)
        return reply

    grid.fault = fault
    with caplog.at_level(logging.WARNING, "flsel"):
        strategy(own, Uniform(), clients_per_round=8).start(grid, own.initial(), num_rounds=1)
    assert "client 2 gave no answer in round 0: " in caplog.text
    assert "of an answer must be" in caplog.text


def test_counters_of_a_model_keep_their_value(own: OwnApp) -> None:
    grid = own.grid()
    counter = {"steps_seen": Array(np.array(3))}

    def fault(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            reply.content["arrays"] = ArrayRecord(
                dict(reply.content["arrays"]) | {"steps_seen": Array(np.array(9))}
            )
        return reply

    grid.fault = fault
    plain = strategy(own, Uniform()).start(own.grid(), own.initial(), num_rounds=2)
    given = ArrayRecord(dict(own.initial()) | counter)
    found = strategy(own, Uniform()).start(grid, given, num_rounds=2)
    assert int(found.arrays["steps_seen"].numpy()) == 3
    found.arrays.pop("steps_seen")
    assert close(found.arrays, plain.arrays)
