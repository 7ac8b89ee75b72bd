"""One malformed answer costs its client the round, and no other client anything; needs flwr."""

from __future__ import annotations

import io
import logging
import pickle
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from flsel.errors import UserError
from flsel.selectors import AFL, DivFL, FedCor, FedGS, PowD, Uniform

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from grids import LocalGrid

from flsel.flower import SelectorStrategy, answer

BAD = 2
CLIENTS = 5
MODEL = {"weight": np.zeros((3, 2), np.float32), "bias": np.ones(3, np.float32), "seen": np.array(0)}
Kind = Callable[[RecordDict], Any]


def tiny_app(app: ClientApp | None = None) -> ClientApp:
    """An app whose clients move the model by their number."""
    app = app or ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        part = int(context.node_config["partition-id"])
        sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
        ends = {n: Array(np.asarray(a + part, a.dtype)) for n, a in sent.items()}
        metrics = MetricRecord({"num-examples": 4, "steps": 2, "accuracy": 0.5})
        return Message(RecordDict({"arrays": ArrayRecord(ends), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 4, "loss": float(context.node_config["partition-id"])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def gradient(arrays: ArrayRecord, context: Context) -> ArrayRecord:
        part = float(context.node_config["partition-id"])
        return ArrayRecord({n: Array(np.full(MODEL[n].shape, part, np.float32)) for n in ("weight", "bias")})

    answer(
        app, labels=lambda context: [0, 1, 2, 0], losses=lambda arrays, context: [0.5] * 4, gradient=gradient
    )
    return app


def grid_of(fault: Any = None) -> LocalGrid:
    app = tiny_app()
    grid = LocalGrid({100 + i: (app, {"partition-id": i}) for i in range(CLIENTS)})
    grid.fault = fault
    return grid


def spoiled(kind: Kind, message_type: str) -> Any:
    """A fault that changes what one node answers to one type of message."""

    def fault(message: Message, reply: Message) -> Message | None:
        if message.metadata.dst_node_id != 100 + BAD or message.metadata.message_type != message_type:
            return reply
        found = kind(reply.content)
        return Message(found, reply_to=message) if isinstance(found, RecordDict | Error) else found or reply

    return fault


def run(selector: Any, fault: Any, rounds: int = 1, **more: Any) -> SelectorStrategy:
    given = {
        "clients": CLIENTS,
        "clients_per_round": CLIENTS,
        "wait": 0.0,
        "timeout": 0.3,
        "fraction_evaluate": 0.0,
    }
    asked = SelectorStrategy(selector, **(given | more))
    initial = ArrayRecord({name: Array(value) for name, value in MODEL.items()})
    asked.result = asked.start(grid_of(fault), initial, num_rounds=rounds)  # type: ignore[attr-defined]
    return asked


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def header(text: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    size = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + text.encode("latin1") + body


def claims(shape: str, descr: str = "'<f4'", body: bytes = b"") -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n", body)


def data(content: bytes, stype: str = "numpy.ndarray") -> Kind:
    """Replace the bytes of one array."""

    def change(records: RecordDict) -> None:
        records["arrays"]["weight"] = Array("float32", (3, 2), stype, content)

    return change


def array(value: np.ndarray) -> Kind:
    return data(npy(value))


def metric(name: str, value: Any) -> Kind:
    """Set a metric past what Flower's constructors check."""

    def change(records: RecordDict) -> None:
        records["metrics"].__dict__["_data"][name] = value

    return change


def records(change: Callable[[RecordDict], Mapping[str, Any]]) -> Kind:
    return lambda found: RecordDict(dict(change(found)))


def said(name: str, value: Any) -> Kind:
    """Set a plain value of an answer to a question."""

    def change(records: RecordDict) -> None:
        records["flsel"].__dict__["_data"][name] = value

    return change


def without(name: str) -> Kind:
    def change(records: RecordDict) -> None:
        del records["flsel"][name]

    return change


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("unpickled",))


W = np.zeros((3, 2), np.float32)
ARRAYS: dict[str, Kind] = {
    "no bytes": data(b""),
    "bytes that are no array": data(b"\x00\x01\x02" * 50),
    "text": data(b"hello"),
    "half an array": data(npy(W)[:-3]),
    "more than an array": data(npy(W) + b"1234"),
    "only magic": data(b"\x93NUMPY"),
    "magic and version": data(b"\x93NUMPY\x01\x00"),
    "unknown version": data(b"\x93NUMPY\x09\x00" + npy(W)[8:]),
    "version 3": data(b"\x93NUMPY\x03\x00" + npy(W)[8:]),
    "pickled": data(pickle.dumps(Bomb())),
    "object array": data(npy(np.array([Bomb()] * 6, object).reshape(3, 2), allow_pickle=True)),
    "an npz": data(b"PK\x03\x04" + bytes(60)),
    "a header of 10^12 numbers": data(claims("(1000000000000,)")),
    "a header of 10^12 numbers of some bytes": data(claims("(1000000, 1000000)", body=bytes(24))),
    "a header of more than 64 bits": data(claims(f"({10**30},)")),
    "a header of 5,000 digits": data(claims(f"({'9' * 5000},)")),
    "a long header": data(header("{" + " " * 60_000 + "}")),
    "a header of version 2 without end": data(header("{" + " " * 200_000 + "}", version=b"\x02\x00")),
    "a nested header": data(header("(" * 5000 + ")" * 5000)),
    "a header with a call": data(header("__import__('os').getcwd()")),
    "a header of other keys": data(header("{'a': 1}")),
    "a negative shape": data(claims("(-3, -2)", body=bytes(24))),
    "a shape of reals": data(claims("(3.0, 2)", body=bytes(24))),
    "a shape of texts": data(claims("('3', 2)", body=bytes(24))),
    "40 dimensions": data(claims("(" + "1, " * 40 + ")", body=bytes(4))),
    "a zero size": array(np.zeros((0, 2), np.float32)),
    "no dimension": array(np.array(1.0, np.float32)),
    "one dimension more": array(W[None]),
    "transposed": array(W.T),
    "flat": array(W.ravel()),
    "nine times as large": array(np.zeros((9, 3, 2), np.float32)),
    "big-endian": array(W.astype(">f4")),
    "long double": array(W.astype(np.longdouble)),
    "complex": array(W.astype(complex)),
    "int32": array(W.astype(np.int32)),
    "uint8": array(W.astype(np.uint8)),
    "bool": array(W.astype(bool)),
    "texts": array(np.full((3, 2), "x")),
    "bytes as entries": array(np.full((3, 2), b"x")),
    "dates": array(np.full((3, 2), np.datetime64("2020-01-01"))),
    "times": array(np.full((3, 2), np.timedelta64(3, "s"))),
    "records": array(np.zeros((3, 2), [("a", "f4"), ("b", "f4")])),
    "void": array(np.zeros((3, 2), "V4")),
    "a type of texts of a gigabyte": data(claims("(3, 2)", "'<U250000000'")),
    "a type of arrays": data(claims("(3, 2)", "'(1000,1000)<f4'")),
    "an unknown type": data(claims("(3, 2)", "'<q99'", bytes(24))),
    "another way of writing": data(npy(W), "torch.tensor"),
    "NaN": array(np.full((3, 2), np.nan, np.float32)),
    "infinite": array(np.full((3, 2), np.inf, np.float32)),
    "one NaN": array(np.array([[0, 0], [0, np.nan], [0, 0]], np.float32)),
    "float64 beyond float32": array(np.full((3, 2), 1e300)),
    "a counter of another shape": lambda r: r["arrays"].update(seen=Array(np.zeros(10**4, np.int64))),
    "no counter": lambda r: r["arrays"].pop("seen") and None,
    "a missing array": lambda r: r["arrays"].pop("bias") and None,
    "an extra array": lambda r: r["arrays"].update(more=Array(np.zeros(3))),
    "10,000 extra arrays": lambda r: r["arrays"].update(dict.fromkeys(map(str, range(10**4)), Array(W))),
    "a name of 5,000 digits": lambda r: r["arrays"].update({"9" * 5000: r["arrays"].pop("weight")}),
    "a name with terminal codes": lambda r: r["arrays"].update({"\x1b[31mw\r\n": r["arrays"].pop("weight")}),
    "a name that looks the same": lambda r: r["arrays"].update({"we\u0456ght": r["arrays"].pop("weight")}),
    "a name of a lone surrogate": lambda r: r["arrays"].update({"\ud800": r["arrays"].pop("weight")}),
    "an empty name": lambda r: r["arrays"].update({"": r["arrays"].pop("weight")}),
    "no arrays": records(lambda r: {"arrays": ArrayRecord(), "metrics": r["metrics"]}),
}  # fmt: skip
RECORDS: dict[str, Kind] = {
    "nothing": records(lambda r: {}),
    "metrics only": records(lambda r: {"metrics": r["metrics"]}),
    "two models": records(lambda r: {"arrays": r["arrays"], "more": r["arrays"], "metrics": r["metrics"]}),
    "arrays as settings": records(lambda r: {"arrays": ConfigRecord({"weight": b"123"})}),
    "arrays as metrics": records(lambda r: {"arrays": MetricRecord({"weight": [0.0] * 6})}),
    "an error": lambda r: Error(2, "<class 'ValueError'>:<'boom'>"),
    "an error without a reason": lambda r: Error(7),
    "an error of an unknown code": lambda r: Error(10**30, "x"),
    "an error with terminal codes": lambda r: Error(2, "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp\nFAKE\r"),
    "an error of ten megabytes": lambda r: Error(2, "boom " * 2_000_000),
    "an error that is said": lambda r: r.__setitem__("flsel", ConfigRecord({"error": "\x1b[31mboom" * 1000})),
    "an error that is a number": lambda r: r.__setitem__("flsel", ConfigRecord({"error": 7})),
}  # fmt: skip
NUMBERS: dict[str, Any] = {
    "a text": "many", "a list": [1, 2], "a nested list": [[1], [2]], "bytes": b"1", "a truth value": True,
    "nothing": None, "a mapping": {"a": 1}, "infinite": float("inf"), "minus infinity": float("-inf"),
    "negative": -1, "5,000 digits": 10**5000, "1e300": 1e300, "5,000 digits below": -(10**5000),
    "a complex number": 1j, "a text of 5,000 digits": "9" * 5000, "unicode digits": "\u0663",
}  # fmt: skip
TRAININGS = (
    ARRAYS
    | RECORDS
    | {f"steps: {name}": metric("steps", value) for name, value in NUMBERS.items()}
    | {f"num-examples: {name}": metric("num-examples", value) for name, value in NUMBERS.items()}
    | {f"own-loss: {n}": metric("own-loss", v) for n, v in NUMBERS.items() if n not in ("negative", "1e300")}
    | {"steps: NaN": metric("steps", float("nan"))}
)


def one_line(caplog: pytest.LogCaptureFixture, about: str) -> str:
    """The one warning about a client; every line can be printed."""
    lines = [record.getMessage() for record in caplog.records if record.name == "flsel"]
    assert all(line.isprintable() and len(line) < 700 for line in lines)
    (line,) = [line for line in lines if line.startswith(about)]
    return line


@pytest.mark.parametrize("kind", TRAININGS.values(), ids=TRAININGS)
def test_a_malformed_training_is_lost(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flsel"):
        asked = run(Uniform(), spoiled(kind, "train"))
    (step,) = asked.history
    others = [client for client in range(CLIENTS) if client != BAD]
    assert sorted(step.clients) == others
    assert sorted([*step.lost, *step.dropped]) == [BAD]
    if step.lost:
        one_line(caplog, f"client {BAD} gave no answer in round 0: ")
    found = asked.result.arrays  # type: ignore[attr-defined]
    np.testing.assert_allclose(found["weight"].numpy(), np.mean(others))
    assert asked.ledger["dropped_updates"] == 1


WEIRD: dict[str, Kind] = {
    "float64": array(np.full((3, 2), float(BAD))),
    "float16": array(np.full((3, 2), BAD, np.float16)),
    "another order in memory": array(np.asfortranarray(np.full((3, 2), BAD, np.float32))),
    "a text as a metric of its own": metric("accuracy", "high"),
    "NaN as a metric of its own": metric("accuracy", float("nan")),
    "a huge metric of its own": metric("accuracy", 10**400),
    "a metric called error": metric("error", 0.25),
    "settings beside": lambda r: r.__setitem__("config", ConfigRecord({"lr": "fast"})),
    "steps as a real number": metric("steps", 2.0),
}


@pytest.mark.parametrize("name", WEIRD)
def test_what_can_be_read_counts(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flsel"):
        asked = run(Uniform(), spoiled(WEIRD[name], "train"), rounds=2)
    assert [sorted(step.clients) for step in asked.history] == [[*range(CLIENTS)]] * 2
    assert all(step.metrics.get("accuracy", 0.5) == pytest.approx(0.5) for step in asked.history)
    found = asked.result.arrays["weight"].numpy()  # type: ignore[attr-defined]
    # The models of the first three kinds are those of the first round in the second round as well.
    moved = 2.0 + np.mean([0, 1, 0, 3, 4]) if name in [*WEIRD][:3] else 4.0
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, moved)
    lines = [record.getMessage() for record in caplog.records]
    converted = f"clients return models of {name}, which are converted to the model's float32"
    assert lines == ([converted] if name.startswith("float") else [])


LOSSES: dict[str, Kind] = (
    {f"loss: {n}": said("loss", v) for n, v in NUMBERS.items() if n not in ("negative", "1e300")}
    | {f"squared: {n}": said("squared", v) for n, v in NUMBERS.items() if n != "1e300"}
    | {"no loss": without("loss"), "no squared loss": without("squared")}
    | {name: kind for name, kind in RECORDS.items() if name.startswith(("an error", "nothing"))}
    | {"arrays that are none": lambda r: r["arrays"].update(weight=Array("f", (1,), "numpy.ndarray", b"x"))}
)


@pytest.mark.parametrize("kind", LOSSES.values(), ids=LOSSES)
def test_a_malformed_loss_is_no_answer(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    fault = spoiled(kind, "query.flsel_losses")
    with caplog.at_level(logging.WARNING, "flsel"):
        asked = run(PowD(d=CLIENTS), fault, clients_per_round=3)
    one_line(caplog, f"client {BAD} gave no answer in round 0: ")
    assert len(asked.history[0].clients) == 3
    with caplog.at_level(logging.WARNING, "flsel"):
        own = run(AFL(), fault)  # asks participants, after their training
    assert sorted(own.history[0].clients) == [client for client in range(CLIENTS) if client != BAD]


GRADIENTS: dict[str, Kind] = (
    ARRAYS
    | RECORDS
    | {f"trained: {name}": said("trained", value) for name, value in NUMBERS.items()}
    | {
        "trained: unknown names": said("trained", ["weight", "other"]),
        "trained: a counter": said("trained", ["weight", "seen"]),
        "trained: none": said("trained", []),
        "trained: twice": said("trained", ["weight", "weight"]),
        "trained: fewer than others": said("trained", ["weight"]),
        "trained: 100,000 names": said("trained", ["weight"] * 10**5),
        "trained is missing": without("trained"),
    }
)
UNREAD = ("a counter of another shape", "no counter", "an extra array", "10,000 extra arrays", "metrics only")


@pytest.mark.parametrize(
    ("name", "kind"),
    [(n, k) for n, k in GRADIENTS.items() if n not in UNREAD],
    ids=[n for n in GRADIENTS if n not in UNREAD],
)
def test_a_malformed_gradient_is_no_answer(name: str, kind: Kind) -> None:
    def change(found: RecordDict) -> Any:
        found["metrics"] = MetricRecord()
        return kind(found)

    asked = run(DivFL(), spoiled(change, "query.flsel_gradients"), clients_per_round=2, rounds=2)
    assert all(len(step.clients) == 2 and BAD not in step.lost for step in asked.history)


@pytest.mark.parametrize("kind", TRAININGS.values(), ids=TRAININGS)
def test_a_malformed_probe_is_no_answer(kind: Kind) -> None:
    def fault(message: Message, reply: Message) -> Any:
        probe = "config" in message.content and message.content["config"].get("flsel-probe")
        return spoiled(kind, "train")(message, reply) if probe else reply

    asked = run(FedCor(warmup=1), fault, clients_per_round=2, rounds=2)
    assert all(len(step.clients) == 2 for step in asked.history)


HELLOS: dict[str, Kind] = (
    {
        f"client: {name}": said("client", value)
        for name, value in NUMBERS.items()
        if name != "unicode digits" and name != "a text"
    }
    | {f"examples: {name}": said("examples", value) for name, value in NUMBERS.items()}
    | {f"labels: {n}": said("labels", v) for n, v in NUMBERS.items()}
    | {f"answers: {n}": said("answers", v) for n, v in NUMBERS.items() if "digits" not in n and n != "a text"}
    | {f"no {name}": without(name) for name in ("client", "examples", "answers", "labels")}
    | {
        "client: empty": said("client", ""),
        "client: terminal codes": said("client", "\x1b[31m2"),
        "client: two lines": said("client", "2\n3"),
        "labels: other counts": said("labels", [1]),
        "labels: negative": said("labels", [5, -1]),
        "labels: a million classes": said("labels", [0] * (10**6 + 1)),
        "labels: huge counts": said("labels", [10**5000]),
        "nothing": records(lambda r: {}),
        "arrays that are none": lambda r: r["arrays"].update(flsel=Array("f", (1,), "numpy.ndarray", b"x")),
    }
)


@pytest.mark.parametrize("kind", HELLOS.values(), ids=HELLOS)
def test_a_malformed_hello_is_named(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match=f"node {100 + BAD} cannot take part: ") as refused:
        run(FedGS(), spoiled(kind, "query.flsel_hello"), clients_per_round=2)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 800


def test_a_malformed_hello_of_a_node_that_came_back_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of()
    asked = SelectorStrategy(
        Uniform(), clients=CLIENTS, clients_per_round=CLIENTS, wait=0.0, timeout=0.3, fraction_evaluate=0.0
    )

    def come_back(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.apps[900] = grid.apps.pop(100 + BAD)
            grid.fault = lambda m, r: (
                (said("examples", "many")(r.content), r)[1] if "flsel" in r.content else r
            )

    initial = ArrayRecord({name: Array(value) for name, value in MODEL.items()})
    with caplog.at_level(logging.WARNING, "flsel"):
        asked.start(grid, initial, num_rounds=3, evaluate_fn=come_back)
    assert [BAD in step.clients for step in asked.history] == [True, False, False]
    assert "examples of an answer must be a whole number" in one_line(caplog, "node 900 does not take part: ")


EVALUATIONS: dict[str, Kind] = (
    {f"num-examples: {name}": metric("num-examples", value) for name, value in NUMBERS.items()}
    | {f"loss: {n}": metric("loss", v) for n, v in NUMBERS.items() if n not in ("negative", "1e300")}
    | {
        "loss: NaN": metric("loss", float("nan")),
        "another metric": metric("more", 1.0),
        "no metrics": records(lambda r: {}),
        "two records": lambda r: r.__setitem__("more", MetricRecord({"a": 1})),
        "no number of examples": lambda r: r["metrics"].pop("num-examples") and None,
        "an error": lambda r: Error(2, "\x1b[31mboom"),
    }
)


@pytest.mark.parametrize("kind", EVALUATIONS.values(), ids=EVALUATIONS)
def test_a_malformed_evaluation_is_left_out(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flsel"):
        asked = run(Uniform(), spoiled(kind, "evaluate"), fraction_evaluate=1.0)
    one_line(caplog, f"metrics of client {BAD} are left out: ")
    found = asked.result.evaluate_metrics_clientapp[1]  # type: ignore[attr-defined]
    assert found["loss"] == pytest.approx(np.mean([0, 1, 3, 4]))


def test_an_answer_that_flower_cannot_read_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    pull = LocalGrid.pull_messages

    def pulled(grid: LocalGrid, names: Any) -> Any:
        found = list(pull(grid, names))
        for one in found:
            if one.metadata.src_node_id == 100 + BAD or "train" in one.metadata.message_type:
                asked = next(
                    m for m in grid.sent if m.metadata.message_id == one.metadata.reply_to_message_id
                )
                if asked.metadata.dst_node_id == 100 + BAD and asked.metadata.message_type == "train":
                    raise ValueError("Unexpected set of `children`")
        return found

    monkeypatch.setattr(LocalGrid, "pull_messages", pulled)
    (step,) = run(Uniform(), None).history
    assert (step.lost, len(step.clients)) == ([BAD], CLIENTS - 1)


@pytest.mark.parametrize("kind", ["transposed", "no arrays", "big-endian"])
def test_a_first_round_of_malformed_models_ends_the_run(kind: str) -> None:
    def fault(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            found = ARRAYS[kind](reply.content)
            return Message(found, reply_to=message) if isinstance(found, RecordDict) else reply
        return reply

    with pytest.raises(
        UserError, match=r"^round 0: no client returned a model like the one that was sent\. Cli"
    ):
        run(Uniform(), fault, rounds=5)


def test_a_large_answer_is_refused_before_anything_is_allocated() -> None:
    from flsel.flower.adapter import reply as read_reply
    from flsel.flower.decoder import Malformed
    from flsel.flower.remote_model import Model, single

    large = np.zeros(50_000_000, np.float32)
    content = RecordDict({"arrays": ArrayRecord({"weight": Array(large), "bias": Array(MODEL["bias"])})})
    grid = grid_of()
    grid.push_messages([Message(RecordDict(), 100, "query.flsel_hello")])
    message = Message(content, reply_to=grid.sent[0])
    model = Model.of({name: MODEL[name] for name in ("weight", "bias")})
    tracemalloc.start()
    try:
        with pytest.raises(
            Malformed, match=r"weight of an answer must be torch.float32 \[3, 2\], got float32"
        ):
            model.received(single(read_reply(message, 0.0, 1.0).models))
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
