"""Records of when each client was available: CSV tables, and the traces of FLASH and of FedScale."""

from __future__ import annotations

import codecs
import io
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from flsel.arguments import shown
from flsel.errors import UserError, short
from flsel.files.csv_table import csv_number, csv_rows
from flsel.files.read_user_files import parse_json, user_bytes

_DATE = "%Y-%m-%d %H:%M:%S"
_CHARGING = {"battery_charged_on": True, "battery_charged_off": False}
_LOCKED = {"screen_lock": True, "screen_unlock": False}
_NETWORKS = ("unknown", "2g", "3g", "4g", "5g")


@dataclass(frozen=True)
class Record:
    """When one client was available: the half-open intervals [start, end).

    Attributes:
        starts: Starts, float64 ``[m]``, ascending.
        ends: Ends, float64 ``[m]``, each between its start and the next start.
        length: Length of the record, after which it may repeat; at least the last end.
        traced: Whether it is of a user of FLASH or FedScale, in seconds.
    """

    starts: np.ndarray
    ends: np.ndarray
    length: float
    traced: bool = False

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]], length: float, *, traced: bool = False) -> Record:
        """Make a record of intervals in any order; those that overlap or touch are joined."""
        joined: list[list[float]] = []
        for start, end in sorted(pairs):
            if start == end:
                continue
            if joined and start <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([start, end])
        table = np.array(joined, dtype=np.float64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1], length, traced)


@dataclass(frozen=True)
class PlacedRecord:
    """One client's intervals in the time of the run.

    Attributes:
        record: The intervals.
        start: Place in the record at which the run starts.
        repeats: Whether the record starts again at its end.
    """

    record: Record
    start: float
    repeats: bool

    def left(self, time: float) -> float:
        """Return how long the client stays available from a time on; 0 if it is not available."""
        if not len(self.record.starts):
            return 0.0
        at = self._place(time)
        k = int(np.searchsorted(self.record.starts, at, side="right")) - 1
        end = float(self.record.ends[k]) if k >= 0 else -math.inf
        if at >= end:
            return 0.0
        whole = self.repeats and end >= self.record.length and self.record.starts[0] == 0
        if not whole:
            return end - at
        first = float(self.record.ends[0])
        return math.inf if first >= self.record.length else end - at + first

    def until(self, time: float) -> float:
        """Return how long it takes from a time on until the client is available; infinite if it never is."""
        if self.left(time) > 0:
            return 0.0
        at = self._place(time)
        later = self.record.starts[self.record.starts > at]
        if len(later):
            return float(later[0]) - at
        if not self.repeats or not len(self.record.starts):
            return math.inf
        return self.record.length - at + float(self.record.starts[0])

    @property
    def longest(self) -> float:
        """How long the client stays at most; 0 if it is never available."""
        starts = (self.record.starts - self.start).tolist()
        return max((self.left(at % self.record.length if self.repeats else at) for at in starts), default=0.0)

    def _place(self, time: float) -> float:
        return (time + self.start) % self.record.length if self.repeats else time


def read_intervals(key: str, path: str) -> dict[str, Record]:
    """Return the records of a file by the names of its clients, in the order of the file.

    Args:
        key: The setting that names the file, for messages.
        path: A CSV file with the columns ``client,from,to``; FLASH's ``user_behavior_tiny.json`` or
            ``cached_timers.json``; FedScale's ``client_behave_trace``, a pickle of plain numbers, or the same
            as JSON.

    Raises:
        UserError: If the file is unreadable, or an interval is wrong.
    """
    raw = user_bytes(key, path, "a file of intervals")
    try:
        if raw.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{":
            found = parse_json(raw)
        elif raw[:1] == b"\x80":
            found = _Plain(io.BytesIO(raw)).load()
        else:
            found = None
    except (ValueError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(f"{key} must name a file of intervals, got {path}: {short(error, 100)}.") from error
    if found is None:
        return _of_table(key, path)
    if not isinstance(found, Mapping) or not found:
        raise UserError(f"{key} must name a file with a record of each client, got {path} without any.")
    return {str(name): _of_trace(f"{key}, {path}, client {name}", trace) for name, trace in found.items()}


class _Plain(pickle.Unpickler):
    """Loads a pickle of plain numbers, texts, lists and dictionaries, and runs no code of it."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, and only plain numbers are read")


def _of_table(key: str, path: str) -> dict[str, Record]:
    """Read a CSV table; all clients have the length of the whole table."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for line, row in csv_rows(key, path, ("client", "from", "to")):
        start, end = (csv_number(key, (path, line), row, name, zero=True) for name in ("from", "to"))
        if end < start:
            raise UserError(
                f"{key} must give intervals that end after they start, {path} has {start:g} to {end:g} "
                f"in line {line}."
            )
        pairs.setdefault(row["client"].strip(), []).append((start, end))
    every = [pair for own in pairs.values() for pair in own]
    if all(start == end for start, end in every):
        raise UserError(f"{key} must give intervals, and all in {path} are empty.")
    length = max(end for _, end in every)
    return {name: Record.of(own, length) for name, own in pairs.items()}


def _of_trace(where: str, trace: Any) -> Record:
    """Return one client's record in a format of FLASH or FedScale."""
    try:
        if "finish_time" in trace:
            pairs = [*zip(trace["active"], trace["inactive"], strict=True)]
            start, end = 0.0, float(trace["finish_time"])
        elif "ready_time" in trace:
            pairs = trace["ready_time"]
            start, end = float(trace["trace_start"]), float(trace["trace_end"])
        else:
            pairs, start, end = _of_messages(trace["messages"])
        found = [(float(on) - start, float(off) - start) for on, off in pairs]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{where}: a record must have active, inactive and finish_time (FedScale), or messages, or "
            f"trace_start, trace_end and ready_time (FLASH), got {shown(trace)}."
        ) from error
    if not (end > start and all(0 <= on <= off <= end - start for on, off in found)):
        raise UserError(f"{where}: intervals must lie within the record, 0 to {end - start:g}.")
    return Record.of(found, end - start, traced=True)


def _of_messages(messages: str) -> tuple[list[tuple[float, float]], float, float]:
    """Return the intervals in which FLASH's phone is locked, charging and on Wi-Fi, and the whole span."""
    locked = charging = wifi = False
    pairs, times, since = list[tuple[float, float]](), list[float](), None
    for line in filter(str.strip, messages.split("\n")):
        date, state = (part.strip().lower() for part in line.strip().split("\t"))
        times.append((datetime.strptime(date, _DATE) - datetime(2020, 1, 1)).total_seconds())
        charging, locked = _CHARGING.get(state, charging), _LOCKED.get(state, locked)
        wifi = state == "wifi" or (wifi and state not in _NETWORKS)
        ready = locked and charging and wifi
        if ready and since is None:
            since = times[-1]
        elif not ready and since is not None:
            pairs.append((since, times[-1]))
            since = None
    if since is not None:
        pairs.append((since, times[-1]))
    return pairs, min(times), max(times)
