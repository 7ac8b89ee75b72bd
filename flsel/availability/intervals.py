"""Availability from a record."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, final

import numpy as np

from flsel.arguments import UserPath
from flsel.availability.base import Availability, Schedule
from flsel.availability.read_intervals import PlacedRecord, Record, read_intervals
from flsel.errors import UserError, say_once
from flsel.rng import dealt


@final
@dataclass(frozen=True)
class Intervals(Availability):
    """Recorded: a client is available within the intervals of a file, [from, to), and at no other time.

    A CSV file has the columns ``client,from,to``. FLASH's ``user_behavior_tiny.json`` and
    ``cached_timers.json`` and FedScale's ``client_behave_trace`` are read, too, in seconds. A client whose
    interval ends before its training does drops out, and its update is lost.

    **Deviations.** FLASH resumes an interrupted training. Of FedScale's pickle only plain numbers are read.

    Attributes:
        path: Path of the file.
        unit: Unit of the numbers: ``rounds``, or simulated ``seconds``, which need ``devices``.
        repeat: Whether the record starts again at its end: that of the client's trace, or the last ``to`` of
            a table. Otherwise nobody is available after it.
        shift: Whether each client's record starts at a place of its own, which the seed draws; with
            ``repeat`` only.
        draw: Whether each client gets a record that the seed draws, none twice while others are left. null
            draws if the file names other clients than 0 to N - 1, or is a trace of FLASH or FedScale that
            does not name just these. Without a draw, a client without intervals is never available.
    """

    path: Annotated[str, UserPath()]
    unit: Literal["rounds", "seconds"] = "rounds"
    repeat: bool = True
    shift: bool = False
    draw: bool | None = None

    def __post_init__(self) -> None:
        """Refuse a shift of a record that ends."""
        super().__post_init__()
        if self.shift and not self.repeat:
            raise UserError("availability.shift must be false without availability.repeat, got true.")

    @property
    def in_seconds(self) -> bool:
        """Whether the intervals are in simulated seconds."""
        return self.unit == "seconds"

    def formula(self, counts: np.ndarray, rng: np.random.Generator) -> Schedule:
        """Look up who is in an interval."""
        records = self.records(len(counts), rng)
        return lambda times: np.array(
            [[float(record.left(time) > 0) for record in records] for time in times]
        ).reshape(len(times), len(counts))

    def records(self, clients: int, rng: np.random.Generator) -> list[PlacedRecord]:
        """Return the record of each client.

        Args:
            clients: N.
            rng: The run's generator for draws that are made once.

        Raises:
            UserError: If the file is unreadable or wrong, or names unknown clients.
        """
        found = _read(self.path, _changed(self.path))
        own = {str(client) for client in range(clients)}
        strangers, traced = sorted(found.keys() - own), any(record.traced for record in found.values())
        if traced and not self.in_seconds:
            raise UserError(
                "availability.unit must be seconds with a trace of FLASH or FedScale, such as "
                f"{self.path}, got rounds."
            )
        if self.draw is False and strangers:
            raise UserError(
                f"availability.path must name clients 0 to {clients - 1}, {self.path} names {strangers[0]}: "
                "set availability.draw to true to give each client a record that the seed draws."
            )
        if self.draw or strangers or (self.draw is None and traced and found.keys() < own):
            drawn = f"each of {clients} clients gets one that the seed draws"
            say_once(f"{self.path} has {len(found)} records, and {drawn}")
            chosen = dealt([*found.values()], clients, rng)
        else:
            if lacks := sorted(map(int, own - found.keys())):
                some = f"{len(lacks)} clients, such as {lacks[0]}, which are never available"
                say_once(f"{self.path} has no interval of {some}: availability.draw true gives each a record")
            nothing = Record.of([], 1.0)
            chosen = [found.get(str(client), nothing) for client in range(clients)]
        starts = (
            rng.random(clients) * [record.length for record in chosen] if self.shift else np.zeros(clients)
        )
        starts = starts if self.in_seconds else np.floor(starts)
        return [
            PlacedRecord(record, float(start), repeats=self.repeat)
            for record, start in zip(chosen, starts, strict=True)
        ]


@functools.lru_cache(maxsize=4)
def _read(path: str, changed: tuple[int, int]) -> dict[str, Record]:
    """Read a file once, however many runs and questions it answers, unless it has changed."""
    return read_intervals("availability.path", path)


def _changed(path: str) -> tuple[int, int]:
    """Return the time of a file's last change and its size; zeros if there is none, which reading refuses."""
    try:
        found = Path(path).expanduser().stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
