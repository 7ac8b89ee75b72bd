"""Nodes in this process, whose messages are bytes on their way."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from runs import left_behind

from flsel.config import RunConfig
from flsel.flower.node import Node
from flsel.flower.wire import Models, Reply, Request

Fault = Callable[[Request, Reply], Reply | None]


class InProcess:
    """Carry requests to nodes of this process; ``fault`` may change a reply, or lose it."""

    def __init__(self, config: RunConfig, count: int, fault: Fault | None = None) -> None:
        self.parts: dict[int, Any] = {1000 + 7 * part: Node(config, part, count) for part in range(count)}
        self.fault, self.sent = fault, list[Request]()

    def nodes(self) -> list[int]:
        return sorted(self.parts)

    def exchange(self, requests: Sequence[Request], timeout: float) -> list[Reply]:
        self.sent += requests
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Reply:
        reply = self.parts[request.node].answer(request.action, _travelled(request.models), request.values)
        reply = Reply(_travelled(reply.models), reply.values, 0.25, reply.error)
        if self.fault is None or request.action == "hello":
            return reply
        return self.fault(request, reply) or Reply(error="no answer within 1 s")


def _travelled(models: Models) -> Models:
    return {name: {key: _bytes(value) for key, value in model.items()} for name, model in models.items()}


def _bytes(array: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    file.seek(0)
    loaded: np.ndarray = np.load(file, allow_pickle=False)
    return loaded


def replaced(reply: Reply, change: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]) -> Reply:
    return Reply({"answer": change(reply.models["answer"])}, reply.values, reply.seconds)


def outcome(folder: Path) -> dict[str, Any]:
    """What a run left behind, without what the self-check compared, and what is logged of nodes."""
    found = left_behind(folder)
    del found["state"]["agreement"]
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    shown = [name for name in header if not name.startswith("seconds/")]
    found["metrics"] = [
        [cell for cell, name in zip(row, shown, strict=True) if not name.startswith("nodes/")]
        for row in found["metrics"]
    ]
    return found
