"""Reads an offline ``.wandb`` file: records of W&B's protocol in a log of LevelDB's format."""

import json
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

from wandb.proto import wandb_internal_pb2

FILE_HEADER, BLOCK, RECORD_HEADER = 7, 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class WandbRun:
    """What one offline run stored; ``metrics`` maps a (glob) name to its definition."""

    id: str = ""
    name: str = ""
    project: str = ""
    group: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict = field(default_factory=dict)
    history: list[dict] = field(default_factory=list)
    metrics: dict = field(default_factory=dict)
    summary: dict = field(default_factory=dict)
    exit_code: int | None = None


def read_run(path: Path) -> WandbRun:
    """Read a run that is over; W&B's own process may be writing its last records still."""
    deadline = time.monotonic() + 500
    while (run := _read(path)).exit_code is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return run


def _read(path: Path) -> WandbRun:
    run = WandbRun()
    for payload in _payloads(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        _add(run, record)
    return run


def _payloads(data: bytes):
    position, parts = FILE_HEADER, b""
    while position + RECORD_HEADER <= len(data):
        left = BLOCK - position % BLOCK
        if left < RECORD_HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + RECORD_HEADER])
        if kind not in (FULL, FIRST, MIDDLE, LAST):
            return
        position += RECORD_HEADER
        if position + length > len(data):
            return
        parts += data[position : position + length]
        position += length
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def _add(run: WandbRun, record) -> None:
    kind = record.WhichOneof("record_type")
    if kind == "run":
        run.id, run.name, run.project = record.run.run_id, record.run.display_name, record.run.project
        run.group, run.job_type, run.tags = record.run.run_group, record.run.job_type, list(record.run.tags)
        run.config |= _items(record.run.config.update)
    elif kind == "history":
        run.history.append(_items(record.history.item))
    elif kind == "metric":
        run.metrics[record.metric.name or record.metric.glob_name] = record.metric
    elif kind == "summary":
        run.summary |= _items(record.summary.update)
    elif kind == "exit":
        run.exit_code = record.exit.exit_code


def _items(items) -> dict:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
