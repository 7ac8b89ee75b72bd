"""Log requests to nodes and their answers, as metrics of a run and as lines of a file."""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from flsel.files import open_own
from flsel.flower.grid_trainer import GridTrainer
from flsel.flower.wire import Asked

FILE = "nodes.jsonl"


class NodeLog:
    """A callback that writes a line of ``nodes.jsonl`` for each request, and adds metrics of the nodes.

    The metrics count since the last evaluation: ``nodes/asked`` and ``nodes/lost``, requests and those
    without an answer; ``nodes/answered``, nodes that answered; ``nodes/seconds``, the longest wait.

    Args:
        trainer: Sends the requests that are logged.
    """

    def __init__(self, trainer: GridTrainer) -> None:
        self._trainer = trainer
        self._folder = Path()
        self._since: list[Asked] = []

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Take the run's folder."""
        self._folder = Path(trainer.default_root_dir)

    def on_round_end(self, server: Any, record: Any) -> None:
        """Write down the round's requests."""
        self._write()

    def on_evaluation(self, server: Any, metrics: MutableMapping[str, float]) -> None:
        """Add what the nodes did since the last evaluation."""
        self._write()
        asked, self._since = self._since, []
        metrics["nodes/asked"] = len(asked)
        metrics["nodes/lost"] = sum(bool(request.error) for request in asked)
        metrics["nodes/answered"] = len({request.node for request in asked if not request.error})
        metrics["nodes/seconds"] = max((request.seconds for request in asked), default=0.0)

    def _write(self) -> None:
        if not self._trainer.asked:
            return
        asked, self._trainer.asked = self._trainer.asked, []
        self._since += asked
        handle = open_own(self._folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(request._asdict()) + "\n" for request in asked)
