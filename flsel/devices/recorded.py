"""Devices from a file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from flsel.arguments import shown
from flsel.devices.base import Devices, Table
from flsel.errors import UserError


@final
@dataclass(frozen=True)
class Recorded(Devices):
    """Devices from a CSV file with the columns ``client,seconds,down,up,delay`` and, if wanted, ``jitter``.

    Each client of the run has one row. The columns mean what :class:`Table` says.

    Attributes:
        path: The file.
    """

    path: str

    def formula(self, sizes: np.ndarray, rng: np.random.Generator) -> Table:
        """Read the file.

        Raises:
            UserError: If the file is unreadable or lacks a column, a client or a number.
        """
        rows = _rows(self.path)
        wanted = ("client", "seconds", "down", "up", "delay")
        lacks = [name for name in wanted if rows and name not in rows[0]]
        if lacks or not rows:
            raise UserError(
                f"devices.path must name a CSV file with the columns {','.join(wanted)}, got {self.path}"
                + (f" without {','.join(lacks)}." if lacks else " without rows.")
            )
        columns = {
            name: np.array([_number(self.path, at, row, name) for at, row in enumerate(rows, 2)])
            for name in (*wanted, *(["jitter"] if "jitter" in rows[0] else []))
        }
        clients = columns.pop("client")
        if len(np.unique(clients)) < len(clients):
            raise UserError(
                f"devices.path must have one row for each client, {self.path} has several for one."
            )
        missing = np.setdiff1d(np.arange(len(sizes)), clients)
        if len(missing):
            raise UserError(
                f"devices.path must have a row for each of {len(sizes)} clients, {self.path} lacks client "
                f"{missing[0]}" + (f" and {len(missing) - 1} more." if len(missing) > 1 else ".")
            )
        order = np.argsort(clients)[np.searchsorted(np.sort(clients), np.arange(len(sizes)))]
        return Table(**{name: column[order] for name, column in columns.items()})


def _rows(path: str) -> list[dict[str, str]]:
    try:
        with open(Path(path).expanduser(), newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"devices.path must name a CSV file that can be read, got {path}: {error}."
        ) from error


def _number(path: str, line: int, row: dict[str, str], name: str) -> float:
    try:
        return int(row[name]) if name == "client" else float(row[name])
    except (TypeError, ValueError):
        raise UserError(
            f"devices.path must hold numbers, {path} has {shown(row[name])} as {name} in line {line}."
        ) from None
