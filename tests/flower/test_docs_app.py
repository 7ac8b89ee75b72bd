"""The Flower app of docs/flower.md runs as it is written; needs flwr (make test-flower)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from grids import LocalGrid

PAGE = Path(__file__).parents[2] / "docs/flower.md"
SERVER, CLIENT = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[:2]


class Net(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)


def load_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    part = int(context.node_config["partition-id"])
    x = torch.randn(5 + part, 3, generator=torch.Generator().manual_seed(part))
    return x, (x[:, 0] > 0).long()


def train(message: Message, context: Context) -> Message:
    net, (x, y) = Net(), load_data(context)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    torch.nn.functional.cross_entropy(net(x), y).backward()
    with torch.no_grad():
        for value in net.parameters():
            value -= 0.5 * value.grad  # type: ignore[operator]
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message
    )


def test_the_app_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("my_task")
    module.Net, module.load_data, module.app = Net, load_data, ClientApp()
    module.app.train()(train)
    module.app.evaluate()(train)
    monkeypatch.setitem(sys.modules, "my_task", module)
    exec(compile(CLIENT, "client.py", "exec"), {})
    server: dict[str, Any] = {}
    exec(compile(SERVER, "server.py", "exec"), server)
    grid = LocalGrid({100 + part: (module.app, {"partition-id": part}) for part in range(10)})
    server["app"](grid, SimpleNamespace(run_config={}))
    assert len(grid.asked("train")) == 60
    assert len(grid.asked("query.flsel_losses")) == 120
    lines = [line for line in (SERVER + CLIENT).splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 22
