"""Processes that fail for real; needs flwr, and FLSEL_SLOW=1, as Flower takes minutes to notice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower", exc_type=ImportError)

from loopback import federation

SLOW = pytest.mark.skipif(not os.environ.get("FLSEL_SLOW"), reason="takes minutes: FLSEL_SLOW=1")
PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "faults"
version = "1.0.0"
description = "Clients that fail"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "flsel"
[tool.flwr.app.components]
serverapp = "faults.server:app"
clientapp = "faults.client:app"
[tool.flwr.app.config]
"""
SERVER = """\
import json
import logging
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flsel.flower import SelectorStrategy
from flsel.selectors import Uniform

app = ServerApp()
folder = Path({folder!r})
logging.getLogger("flsel").addHandler(logging.FileHandler(folder / "said.txt"))

def told(round, arrays):
    folder.joinpath(f"round{{round}}").touch()

@app.main()
def main(grid, context):
    strategy = SelectorStrategy(
        Uniform(), clients=3, clients_per_round=3, timeout=25.0, num_classes=2, fraction_evaluate=0.0
    )
    result = strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=9, evaluate_fn=told)
    rows = [dict(clients=sorted(o.clients), lost=o.lost) for o in strategy.history]
    found = dict(rows=rows, dropped=strategy.ledger["dropped_updates"])
    folder.joinpath("part.json").write_text(json.dumps(found))
    folder.joinpath("part.json").rename(folder / "found.json")
"""
CLIENT = """\
import os
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flsel.flower import answer

app = ClientApp()

@app.train()
def train(message, context):
    part, round = context.node_config["partition-id"], message.content["config"]["server-round"]
    if (part, round) == (0, 2):
        raise ValueError("boom")
    if (part, round) == (1, 3):
        os._exit(1)
    arrays = [array + 1 for array in message.content["arrays"].to_numpy_ndarrays()]
    records = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 4})}
    return Message(RecordDict(records), reply_to=message)

answer(app, labels=lambda context: [0, 1, 0, 1])
"""


def app(folder: Path, results: Path) -> Path:
    (folder / "faults").mkdir(parents=True)
    for name, text in (
        ("pyproject.toml", PROJECT),
        ("faults/__init__.py", ""),
        ("faults/server.py", SERVER.format(folder=str(results))),
        ("faults/client.py", CLIENT),
    ):
        (folder / name).write_text(text)
    return folder


@SLOW
@pytest.mark.timeout(1200)
def test_a_federation_outlives_a_client_that_raises_one_that_dies_and_a_node_that_is_killed(
    tmp_path: Path,
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    with federation(tmp_path / "flower", 3) as there:
        there.begin(app(tmp_path / "app", results))
        there.wait_for(results / "round4", 600)
        there.kill_node(2)
        there.wait_for(results / "round6", 300)
        there.start_node(2)
        there.wait_for(results / "found.json", 600)
    found: dict[str, Any] = json.loads((results / "found.json").read_text())
    rows, said = found["rows"], (results / "said.txt").read_text()
    print(*rows, said, sep="\n")
    assert len(rows) == 9
    assert rows[0] == {"clients": [0, 1, 2], "lost": []}
    assert rows[1] == {"clients": [1, 2], "lost": [0]}
    assert rows[2]["lost"] == [1]
    assert 2 in rows[4]["lost"]
    assert any(2 in row["clients"] for row in rows[6:]), "the node that came back was asked, and answered"
    assert "client 0 gave no answer in round 1: Flower error 2: <class 'ValueError'>:<'boom'>" in said
    assert "client 1 gave no answer in round 2: " in said
    assert found["dropped"] == sum(len(row["lost"]) for row in rows)
