"""Apps in the form of Flower's quickstarts run with a selector; needs flwr (make test-flower)."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

import tomllib
from flwr.app import Message, RecordDict
from grids import LocalGrid

APPS = Path(__file__).with_name("apps")


def component(folder: Path, name: str) -> Any:
    """Return a component as the pyproject.toml of an app names it."""
    settings = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, attribute = settings["tool"]["flwr"]["app"]["components"][name].partition(":")
    return getattr(importlib.import_module(module), attribute)


@pytest.fixture(params=["pytorch", "lightning", "sklearn"])
def folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip({"pytorch": "torch"}.get(request.param, request.param))
    monkeypatch.syspath_prepend(APPS / request.param)
    return APPS / request.param


@pytest.mark.filterwarnings("ignore::Warning:lightning")
def test_an_app_learns_with_a_selector(folder: Path) -> None:
    client = component(folder, "clientapp")
    grid = LocalGrid({100 + i: (client, {"partition-id": i}) for i in range(10)})
    losses = list[float]()

    def note(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "evaluate":
            losses.append(reply.content["metrics"]["eval_loss"])
        return reply

    grid.fault = note
    context = SimpleNamespace(run_config={"num-server-rounds": 3}, state=RecordDict())
    component(folder, "serverapp")(grid, context)
    assert len(grid.asked("query.flsel_losses")) == 3 * 6
    assert len(grid.asked("train")) == 3 * 3
    assert len(grid.asked("evaluate")) == 3 * 10
    assert len(losses) == 3 * 10
    assert sum(losses[-10:]) < sum(losses[:10])
    assert context.state["arrays"]
