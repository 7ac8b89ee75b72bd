"""Devices from a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from flsel.devices.base import Devices, Table
from flsel.errors import UserError, say_once, short
from flsel.files.csv_table import csv_number, csv_rows
from flsel.rng import dealt

_KEY = "devices.path"
_WANTED = ("seconds", "down", "up", "delay")
# Standard deviations, and what they are in the table: those of logarithms.
_SPREADS = {"seconds_sd": "jitter", "down_sd": "down_jitter", "up_sd": "up_jitter"}


@final
@dataclass(frozen=True)
class Recorded(Devices):
    """Devices from a CSV file with the columns ``seconds,down,up,delay`` and maybe ``client`` and others.

    Requests of a device vary if the file has a column ``seconds_sd``, ``down_sd`` or ``up_sd``, the standard
    deviation in the unit of the column, or ``jitter``, ``down_jitter`` or ``up_jitter``, that of the
    logarithm. They are log-normal with the mean of the column.

    If the column ``client`` names just the clients of the run, each has its row. Otherwise each client gets a
    row that is drawn by the run's seed, and no row is drawn twice while others are left. The log names
    other columns. The columns mean what :class:`Table` says.

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
        known = ("client", *_WANTED, *_SPREADS, *_SPREADS.values())
        for line, row in csv_rows(_KEY, self.path, _WANTED):
            place = self.path, line
            if others := [short(name, 60) for name in row if name not in known]:
                say_once(f"{self.path}: not used: {', '.join(others)}")
            named = "client" in row
            client = csv_number(_KEY, place, row, "client", whole=True, zero=True) if named else len(devices)
            if client in devices:
                raise UserError(
                    f"devices.path must have one row for each client, {self.path} has a second one for "
                    f"client {client:.0f} in line {line}."
                )
            devices[int(client)] = {
                name: csv_number(_KEY, place, row, name, zero=name not in ("seconds", "down", "up"))
                for name in known[1:]
                if name in row
            }
        rows, clients = [devices[client] for client in sorted(devices)], len(sizes)
        if devices.keys() != set(range(clients)):
            drawn = f"each of {clients} clients gets one that the seed draws"
            say_once(f"{self.path} has {len(rows)} devices, and {drawn}")
            rows = dealt(rows, clients, rng)
        columns = {name: np.array([device[name] for device in rows]) for name in rows[0]}
        for spread, jitter in _SPREADS.items():
            if spread in columns and jitter in columns:
                raise UserError(f"devices.path must have one of {spread} and {jitter}, {self.path} has both.")
            if spread in columns:
                mean = columns[spread.rpartition("_")[0]]
                columns[jitter] = np.sqrt(np.log1p((columns.pop(spread) / mean) ** 2))
        return Table(**columns)
