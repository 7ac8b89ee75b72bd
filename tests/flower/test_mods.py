"""Mods of a user's app see messages that they know: one model, and a config with the round; needs flwr."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from flsel.selector import Selector
from flsel.selectors import AFL, DivFL, FedCor, FedGS, Oort, PowD, Uniform

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, message_size_mod
from grids import LocalGrid
from test_malformed import CLIENTS, MODEL, tiny_app

from flsel.flower import SelectorStrategy

SELECTORS = [Uniform(), PowD(d=CLIENTS), AFL(), DivFL(), FedCor(warmup=1), FedGS(), Oort()]
WEIGHTS = {name: value for name, value in MODEL.items() if value.dtype.kind == "f"}


def strict_mod(message: Message, context: Context, call_next: Any) -> Message:
    """A mod that reads what Flower's own strategies send, and wants back what their clients return."""
    config = message.content["config"]
    assert config["server-round"] >= 1
    assert config["lr"] == 0.5
    assert list(message.content.config_records) == ["config"]
    sent = message.content["arrays"]
    reply: Message = call_next(message, context)
    if message.metadata.message_type != "evaluate":
        (back,) = reply.content.array_records.values()
        assert list(back) == list(sent)
    return reply


def dp(clip: float = 1e6, noise: float = 0.0) -> LocalDpMod:
    return LocalDpMod(clip, noise, 1.0, 0.5)


def played(selector: Selector, mods: list[Any], model: dict[str, np.ndarray] = MODEL) -> SelectorStrategy:
    app = tiny_app(ClientApp(mods=mods))
    grid = LocalGrid({100 + i: (app, {"partition-id": i + 1}) for i in range(CLIENTS)})
    asked = SelectorStrategy(
        selector, clients=CLIENTS, clients_per_round=2, wait=0.0, timeout=1.0, fraction_evaluate=0.0
    )
    initial = ArrayRecord({name: Array(value) for name, value in model.items()})
    asked.result = asked.start(  # type: ignore[attr-defined]
        grid, initial, num_rounds=3, train_config=ConfigRecord({"lr": 0.5})
    )
    return asked


@pytest.mark.parametrize("selector", SELECTORS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("mods", [[strict_mod], [dp()], [message_size_mod, arrays_size_mod, strict_mod]])
def test_mods_change_no_round(selector: Selector, mods: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    plain = played(selector, [strict_mod], WEIGHTS)
    with caplog.at_level(logging.WARNING, "flsel"):
        found = played(selector, mods, WEIGHTS)
    assert [record.getMessage() for record in caplog.records if record.name == "flsel"] == []
    if not isinstance(selector, Oort):  # which chooses by measured seconds
        assert [step.clients for step in found.history] == [step.clients for step in plain.history]
        for name, array in plain.result.arrays.items():  # type: ignore[attr-defined]
            other = found.result.arrays[name].numpy()  # type: ignore[attr-defined]
            np.testing.assert_allclose(other, array.numpy(), rtol=1e-5)


def test_a_gradient_is_clipped_as_an_update_is() -> None:
    asked = played(DivFL(), [dp(clip=1e-9)], WEIGHTS)
    assert all(len(step.clients) == 2 and not step.lost for step in asked.history)
    for name, array in asked.result.arrays.items():  # type: ignore[attr-defined]
        np.testing.assert_allclose(array.numpy(), WEIGHTS[name], atol=1e-7)
