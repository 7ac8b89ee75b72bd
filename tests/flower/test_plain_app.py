"""A Flower app that knows nothing of flsel, and the arguments of Flower's FedAvg; needs flwr."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flsel.errors import UserError
from flsel.selectors import AFL, MD, FedGS, PowD, Uniform

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from grids import LocalGrid

from flsel.flower import SelectorStrategy

MODEL = {"weight": np.zeros((3, 2), np.float32)}


def plain_app(model: str = "arrays", config: str = "config", examples: str = "num-examples") -> ClientApp:
    """An app whose node n has n examples and moves the model by n."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        assert message.content[config]["server-round"] >= 1
        ends = {n: Array(a.numpy() + np.float32(context.node_id)) for n, a in message.content[model].items()}
        metrics = MetricRecord({examples: context.node_id, "loss": float(context.node_id)})
        return Message(RecordDict({model: ArrayRecord(ends), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        assert message.content[config]["server-round"] >= 1
        metrics = MetricRecord({examples: context.node_id, "loss": float(context.node_id)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def start(selector: Any, app: ClientApp, rounds: int = 1, **more: Any) -> Any:
    given = {"clients": 4, "clients_per_round": 4, "wait": 0.0, "timeout": 1.0, "fraction_evaluate": 0.0}
    asked = SelectorStrategy(selector, **(given | more))
    grid = LocalGrid({node: (app, {}) for node in (1, 2, 3, 4)})
    initial = ArrayRecord({name: Array(value) for name, value in MODEL.items()})
    return asked, asked.start(grid, initial, num_rounds=rounds)


def test_a_plain_client_is_weighed_by_its_number_of_examples() -> None:
    asked, found = start(Uniform(), plain_app())
    assert asked.history[0].clients == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})
    np.testing.assert_allclose(found.arrays["weight"].numpy(), 3.0)
    assert asked.state_dict()["members"]["sizes"] == [1, 2, 3, 4]
    assert asked.state_dict()["members"]["names"] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("selector", [Uniform(), MD()], ids=lambda s: type(s).__name__)
def test_selectors_that_ask_nothing_run_over_plain_clients(selector: Any) -> None:
    asked, _ = start(selector, plain_app(), rounds=5, clients_per_round=2)
    assert all(step.clients and not step.lost for step in asked.history)


@pytest.mark.parametrize(
    ("selector", "reason"),
    [
        (PowD(d=4), "PowD asks clients for their losses, and client 1 does not answer: give losses="),
        (AFL(), "AFL asks clients for their losses, and client 1 does not answer"),
        (FedGS(), "node 1 and 3 others cannot take part: .* its ClientApp must call flsel.flower.answer"),
    ],
)
def test_selectors_that_ask_need_answers(selector: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        start(selector, plain_app(), clients_per_round=2)


def test_the_arguments_of_fedavg() -> None:
    def most(contents: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({"most": max(content["metrics"][key] for content in contents)})

    asked, found = start(
        Uniform(),
        plain_app("model", "settings", "rows"),
        weighted_by_key="rows",
        arrayrecord_key="model",
        configrecord_key="settings",
        train_metrics_aggr_fn=most,
        evaluate_metrics_aggr_fn=most,
        fraction_evaluate=1.0,
    )
    assert asked.history[0].clients == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})
    assert found.train_metrics_clientapp[1]["most"] == 4
    assert found.evaluate_metrics_clientapp[1]["most"] == 4
    _, found = start(Uniform(), plain_app(), fraction_evaluate=1.0)
    assert found.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(3.0)
    assert found.train_metrics_clientapp[1]["loss"] == pytest.approx(3.0)
