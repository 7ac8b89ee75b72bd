"""Devices from a file."""

from __future__ import annotations

import csv
import functools
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from flsel.arguments import shown
from flsel.devices.base import Devices, Table
from flsel.errors import UserError

_WANTED = ("seconds", "down", "up", "delay")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LOG = logging.getLogger("flsel")


@final
@dataclass(frozen=True)
class Recorded(Devices):
    """Devices from a CSV file with the columns ``seconds,down,up,delay`` and maybe ``client`` and ``jitter``.

    If the column ``client`` names just the clients of the run, each has its row. Otherwise each client gets a
    row that is drawn by the run's seed, and no row is drawn twice while others are left. Other columns are
    left out. The columns mean what :class:`Table` says.

    Attributes:
        path: Path of the CSV file.
    """

    path: str

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        """Read the file.

        Raises:
            UserError: If the file is unreadable, or lacks a column, or a number is out of range.
        """
        devices: dict[int, dict[str, float]] = {}
        for line, row in _rows(self.path):
            client = _number(self.path, line, row, "client") if "client" in row else len(devices)
            if client in devices:
                raise UserError(
                    f"devices.path must have one row for each client, {self.path} has a second one for "
                    f"client {client:.0f} in line {line}."
                )
            devices[int(client)] = {
                name: _number(self.path, line, row, name) for name in (*_WANTED, "jitter") if name in row
            }
        rows, clients = [devices[client] for client in sorted(devices)], len(sizes)
        if devices.keys() != set(range(clients)):
            _tell_of_draw(self.path, len(rows), clients)
            rounds = [rng.permutation(len(rows)) for _ in range(-(-clients // len(rows)))]
            rows = [rows[at] for at in np.concatenate(rounds)[:clients]]
        return Table(**{name: np.array([device[name] for device in rows]) for name in rows[0]})


@functools.cache
def _tell_of_draw(path: str, rows: int, clients: int) -> None:
    _LOG.warning(
        "%s has %d devices, and each of %d clients gets one that the seed draws", path, rows, clients
    )


def _rows(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the lines' numbers and their fields by the names of the columns."""
    try:
        # Spreadsheets write a mark before the first name.
        with open(Path(path).expanduser(), newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            lines = [(reader.line_num, fields) for fields in reader if fields]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"devices.path must name a CSV file that can be read, got {path}: {error}."
        ) from error
    head = [name.strip() for name in lines[0][1]] if lines else []
    lacks = [name for name in _WANTED if head.count(name) == 0] if len(lines) > 1 else []
    twice = next((name for name in head if head.count(name) > 1), None)
    if len(lines) < 2 or lacks or twice is not None:
        wrong = (
            f"without {','.join(lacks)}"
            if lacks
            else f"with two columns {twice}"
            if twice
            else "without rows"
        )
        raise UserError(
            f"devices.path must name a CSV file with the columns {','.join(_WANTED)}, got {path} {wrong}."
        )
    for line, fields in lines[1:]:
        if len(fields) != len(head):
            raise UserError(
                f"devices.path must have {len(head)} numbers in each row, {path} has {len(fields)} in line "
                f"{line}: separate them by commas, with points for decimals."
            )
        yield line, dict(zip(head, fields, strict=True))


def _number(path: str, line: int, row: dict[str, str], name: str) -> float:
    """Return a number that a device can have."""
    whole, zero = name == "client", name in ("client", "delay", "jitter")
    try:
        text = row[name].strip()
        if not _NUMBER.fullmatch(text):
            raise ValueError(text)
        number = int(text) if whole else float(text)
        fits = math.isfinite(number) and (number >= 0 if zero else number > 0)
    except (ValueError, OverflowError):
        fits = False
    if not fits:
        rule = f"{'a whole number' if whole else 'a finite number'} {'>= 0' if zero else '> 0'}"
        raise UserError(
            f"devices.path must give {rule} as {name}, {path} has {shown(row[name])} in line {line}."
        )
    return number
