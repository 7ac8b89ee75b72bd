"""A partition that lies in a file, by the data set's own indices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np

from flsel.arguments import UserPath, shown
from flsel.errors import UserError, short, users_code
from flsel.files import check_regular, home
from flsel.files.csv_table import csv_number, csv_rows
from flsel.files.name_order import name_order
from flsel.files.read_user_files import parse_json
from flsel.partition.base import Partition


@final
@dataclass(frozen=True)
class FromFile(Partition):
    """Read which training examples of the data set each client has.

    Index i is example i of the data set, whatever is held out. Examples that are listed nowhere belong to
    nobody. Holdouts are taken from these, with the clients' label mix, or if they are too few, each client
    gives its share.

    Attributes:
        path: A JSON file: ``{client: [indices]}``, a list of lists of indices, ``{index: client}``, or a list
            with the client of every example, -1 for nobody. Or an npz file with one array of indices for each
            client, a npy file with the client of every example, or a CSV file with the columns ``index`` and
            ``client``.
    """

    reads_labels = False
    path: Annotated[str, UserPath()]

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Refuse: the file names examples of the whole data set."""
        raise UserError(
            "partition FromFile names examples of a data set: it cannot deal what holdouts leave."
        )

    def owners(self, labels: np.ndarray) -> np.ndarray:
        """Return the client of every example (see :meth:`Partition.owners`).

        Raises:
            UserError: If the file cannot be read, or names an example twice or one that does not exist.
        """
        content = _read(home(self.path))
        if not isinstance(content, Mapping):
            if isinstance(content, np.ndarray) or (content and _are_numbers(content)):
                return self._owners(_whole(content, f"partition.path {self.path}"), len(labels))
            content = {str(client): listed for client, listed in enumerate(content)}
        elif content and _are_numbers(content.values()):
            content = _by_client(content, f"partition.path {self.path}")
        owner = np.full(len(labels), -1, dtype=np.int64)
        for client, name in enumerate(sorted(content, key=name_order)):
            listed, where = content[name], f"partition.path {self.path}, client {short(name, 60)}"
            indices = _whole(listed, where)
            if len(indices) == 0:
                raise UserError(f"{where} must have examples, got none: leave the client out.")
            if indices.min() < 0 or indices.max() >= len(labels):
                wrong = indices.min() if indices.min() < 0 else indices.max()
                raise UserError(
                    f"{where} must have indices of the {len(labels)} training examples, got {wrong}."
                )
            taken = indices[owner[indices] >= 0]
            if len(taken) or len(np.unique(indices)) < len(indices):
                twice = taken[0] if len(taken) else np.flatnonzero(np.bincount(indices) > 1)[0]
                raise UserError(
                    f"{where} has example {twice}, which is listed before: an example has one client."
                )
            owner[indices] = client
        return _with_clients(owner, self.path)

    def _owners(self, owner: np.ndarray, examples: int) -> np.ndarray:
        if len(owner) != examples or owner.min(initial=0) < -1:
            raise UserError(
                f"partition.path {self.path} must give the client, or -1, of each of {examples} training "
                f"examples, got {len(owner)} numbers from {owner.min(initial=0)}."
            )
        known = np.unique(owner[owner >= 0])
        return _with_clients(np.where(owner < 0, -1, np.searchsorted(known, owner)), self.path)


def _read(path: Path) -> Any:
    """Return what a file holds: a mapping, a list, or an array."""
    check_regular(path)
    if not path.is_file():
        raise UserError(f"partition.path must be a JSON, npz, npy or CSV file, but there is no file {path}.")
    if path.suffix == ".csv":
        return _read_csv(str(path))
    with users_code(f"partition.path {path} cannot be read", reads=True):
        if path.suffix in (".npz", ".npy"):
            found = np.load(path, allow_pickle=False)
            return found if isinstance(found, np.ndarray) else dict(found)
        content = parse_json(path.read_bytes())
    if not isinstance(content, dict | list):
        raise UserError(f"partition.path {path} must hold a mapping or a list, got {shown(content)}.")
    return content


def _read_csv(path: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for line, row in csv_rows("partition.path", path, ("index", "client")):
        index, client = (
            int(csv_number("partition.path", (path, line), row, name, whole=True, zero=True))
            for name in ("index", "client")
        )
        found.setdefault(str(client), []).append(index)
    return found


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _by_client(clients: Mapping[str, Any], where: str) -> dict[str, list[int]]:
    """Turn ``{index: client}`` into ``{client: [indices]}``; -1 is nobody."""
    wrong = next((index for index in clients if not re.fullmatch(r"\d{1,18}", index, re.ASCII)), None)
    if wrong is not None:
        raise UserError(f"{where} must give a list of indices to {short(wrong, 60)}, got {clients[wrong]}.")
    found: dict[str, list[int]] = {}
    for index, client in zip(clients, _whole([*clients.values()], where).tolist(), strict=True):
        if client >= 0:
            found.setdefault(str(client), []).append(int(index))
    return found


def _whole(values: Any, where: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of several lengths
        array = np.asarray("")
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        raise UserError(f"{where} must have a list of whole numbers, got {shown(values)}.")
    return array.astype(np.int64)


def _with_clients(owner: np.ndarray, path: str) -> np.ndarray:
    if owner.max(initial=-1) < 0:
        raise UserError(f"partition.path {path} must give some client examples, and it gives nobody any.")
    return owner
