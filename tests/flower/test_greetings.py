"""Who takes part in a Flower app: nodes that come late, come back, or say another's name; needs flwr."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest

from flsel.errors import UserError
from flsel.selectors import DivFL, FedGS, Oort, PowD, Uniform

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from flwr.app import Array, ArrayRecord, Error, Message
from flwr.clientapp import ClientApp
from grids import LocalGrid
from test_malformed import CLIENTS, MODEL, grid_of, tiny_app

import flsel.flower.contacts
from flsel.flower import SelectorStrategy, answer

HELLO = "query.flsel_hello"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flsel.flower.contacts, "POLL_SECONDS", 0.02)


def start(grid: LocalGrid, rounds: int = 1, selector: Any = None, **more: Any) -> SelectorStrategy:
    given = {"clients": CLIENTS, "clients_per_round": CLIENTS, "wait": 5.0, "timeout": 0.2}
    asked = SelectorStrategy(selector or Uniform(), fraction_evaluate=0.0, **(given | more.pop("given", {})))
    initial = ArrayRecord({name: Array(value) for name, value in MODEL.items()})
    asked.start(grid, initial, num_rounds=rounds, **more)
    return asked


def failing(times: int, error: Error | None) -> Any:
    """A node whose first greetings fail."""
    failed: list[Message] = []

    def fault(message: Message, reply: Message) -> Message | None:
        if (
            message.metadata.message_type != HELLO
            or message.metadata.dst_node_id != 103
            or len(failed) >= times
        ):
            return reply
        failed.append(message)
        return None if error is None else Message(error, reply_to=message)

    return fault


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("error", [None, Error(2, "restarting"), Error(3, "unavailable"), Error(5, "dead")])
def test_a_greeting_that_fails_is_repeated_while_there_is_time(
    times: int, error: Error | None, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(failing(times, error))
    with caplog.at_level(logging.WARNING, "flsel"):
        asked = start(grid)
    assert sorted(asked.history[0].clients) == [*range(CLIENTS)]
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("node 103 cannot take part yet, and is greeted again: ")


def test_a_node_that_restarts_while_others_come_is_its_client() -> None:
    grid = grid_of()
    grid.silent = {103}  # it died, and stays connected for a while
    ids = grid.get_node_ids

    def nodes() -> Any:
        if len(grid.sent) > 2 * CLIENTS:
            grid.apps.pop(103, None)
            grid.apps[903] = (tiny_app(), {"partition-id": 3})
        return ids()

    grid.get_node_ids = nodes  # type: ignore[method-assign]
    assert sorted(start(grid).history[0].clients) == [*range(CLIENTS)]


def test_who_is_missing_at_the_end_of_the_wait_is_named() -> None:
    grid = grid_of()
    grid.silent = {103}
    began = time.monotonic()
    with pytest.raises(UserError) as refused:
        start(grid, given={"wait": 1.0, "timeout": 0.1})
    assert 1.0 <= time.monotonic() - began < 4.0
    assert str(refused.value) == (
        "node 103 cannot take part: no answer within 0.1 s. Of 5 clients 4 came within 1 s: 3 missing."
    )
    del grid.apps[103]
    with pytest.raises(UserError, match=r"got 5, and 4 came within 0 s: 3 missing\.$"):
        start(grid, given={"wait": 0.0})


def test_an_app_without_answers_is_told_what_to_call() -> None:
    grid = grid_of()
    grid.apps[103] = (ClientApp(), {"partition-id": 3})
    with pytest.raises(UserError, match=r"its ClientApp must call flsel\.flower\.answer\. Of 5 clients"):
        start(grid, selector=FedGS(), given={"wait": 0.0, "clients_per_round": 2})


def test_two_nodes_of_one_name_are_refused() -> None:
    grid = grid_of()
    grid.apps[200] = (tiny_app(), {"partition-id": 2})
    with pytest.raises(UserError, match="nodes 102 and 200 both are client 2: give each SuperNode a"):
        start(grid, given={"wait": 0.1})


def test_a_name_of_a_connected_client_is_not_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of()

    def come(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.apps[900] = (tiny_app(), {"partition-id": 2})
        if round == 3:
            del grid.apps[102]  # its old connection ends, so this is the same client on a new node

    with caplog.at_level(logging.WARNING, "flsel"):
        start(grid, rounds=4, evaluate_fn=come)
    asked = grid.asked("train")
    assert [asked.count(node) for node in (102, 900)] == [3, 1]
    assert [record.getMessage() for record in caplog.records] == [
        "node 900 does not take part: it says that it is client 2, which node 102 is"
    ]


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([0.2, 0.7], "got 0.2"),
        ([0.0, 1.0], "got 0.0"),
        (["cat", "dog"], "got 'cat'"),
        ([0, None], "got None"),
        ([-1, 2], "got -1"),
        ([10**9], "got 1000000000"),
        ([10**30], "got 10"),
        ([[0, 1], [1, 0]], r"got an array of shape \[2, 2\]"),
        (3, r"got an array of shape \[\]"),
        ([[1], [2, 3]], "numbers, got list"),
        (np.array(["2020-01-01"], "datetime64[D]"), "got "),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels: Any, reason: str) -> None:
    grid, app = grid_of(), ClientApp()
    answer(app, labels=lambda context: labels)
    grid.apps[103] = (app, {"partition-id": 3})
    with pytest.raises(UserError, match=rf"^node 103 cannot take part: labels must .*{reason}") as refused:
        start(grid, selector=FedGS(), given={"clients_per_round": 2})
    assert "Flower error" not in str(refused.value)


@pytest.mark.parametrize(
    "labels", [np.array([0, 1, 2, 0], np.uint8), np.array([[0], [1], [1]]), [True, False], []]
)
def test_whole_labels_of_any_kind_are_counted(labels: Any) -> None:
    grid, app = grid_of(), ClientApp()
    answer(app, labels=lambda context: labels)
    grid.apps[103] = (app, {"partition-id": 3})
    counts = start(grid, selector=FedGS(), given={"clients_per_round": 2}).state_dict()["members"]["labels"]
    assert counts[3] == np.bincount(np.array(labels, np.int64).ravel()).tolist()


@pytest.mark.parametrize(
    ("arrays", "kinds"),
    [
        ([np.frombuffer(b'{"trees": []}', np.uint8)], r"got none \(uint8\)"),
        ([np.array([])], r"got none \(float64\)"),
        ([], r"got none \(no array\)"),
        ([np.array(["a"])], "each array must .* got <U1"),
        ([np.zeros(3), np.zeros(3, complex)], "each array must .* got complex128"),
    ],
)
def test_arrays_that_are_no_model_are_refused(arrays: list[np.ndarray], kinds: str) -> None:
    asked = SelectorStrategy(Uniform(), clients=CLIENTS, clients_per_round=2, wait=0.0, num_classes=2)
    with pytest.raises(UserError, match=rf"^initial_arrays must be a model.*{kinds}"):
        asked.start(grid_of(), ArrayRecord({str(i): Array(a) for i, a in enumerate(arrays)}))


@pytest.mark.parametrize("selector", [Uniform(), PowD(d=8), DivFL(), Oort()], ids=lambda s: type(s).__name__)
def test_clients_that_come_later_take_part(selector: Any) -> None:
    grid = grid_of()

    def come(round: int, arrays: ArrayRecord) -> None:
        if round == 2:
            names = {200 + i: {"client-id": f"late-{i}", "partition-id": 5 + i} for i in range(2)}
            grid.apps |= {node: (tiny_app(), config) for node, config in names.items()}
        if round == 4:
            grid.apps[300] = (tiny_app(), {"client-id": "too late", "partition-id": 9})

    given = {"clients": CLIENTS + 2, "min_clients": 3, "clients_per_round": CLIENTS + 2, "num_classes": 3}
    asked = start(grid, rounds=6, selector=selector, evaluate_fn=come, given=given)
    seen = [sorted(step.clients) for step in asked.history]
    assert seen[0] == seen[1] == [*range(CLIENTS)]
    assert seen[2] == seen[5] == [*range(CLIENTS + 2)]
    state = asked.state_dict()["members"]
    assert state["names"] == [*map(str, range(CLIENTS)), "late-0", "late-1"]
    assert state["sizes"] == [4] * (CLIENTS + 2)
    assert 300 not in grid.asked("train")


def test_the_first_round_waits_for_as_many_as_must_have_come() -> None:
    with pytest.raises(UserError, match=r"min_clients must be at most .* got 6, and 5 came within 0 s"):
        start(grid_of(), given={"clients": 9, "min_clients": 6, "wait": 0.0})
    with pytest.raises(UserError, match=r"min_clients must be at most clients \(5\), got 6"):
        start(grid_of(), given={"min_clients": 6})
    with pytest.raises(UserError, match=r"min_clients must be clients \(5\) for FedGS, which reads"):
        start(grid_of(), selector=FedGS(), given={"min_clients": 4})


def test_a_late_client_that_cannot_answer_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    grid, silent = grid_of(), ClientApp()
    answer(silent, labels=lambda context: [0, 1])

    def come(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.apps[200] = (silent, {"partition-id": 7})

    given = {"clients": CLIENTS + 1, "min_clients": CLIENTS, "num_classes": 3}
    with caplog.at_level(logging.WARNING, "flsel"):
        asked = start(grid, rounds=3, selector=PowD(d=8), evaluate_fn=come, given=given)
    assert [len(step.clients) for step in asked.history] == [CLIENTS] * 3
    assert caplog.messages == ["node 200 does not take part: it does not answer for its losses"]
