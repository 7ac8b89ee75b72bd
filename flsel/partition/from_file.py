"""A partition that lies in a file, by the data set's own indices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np

from flsel.arguments import UserPath, shown
from flsel.errors import UserError, users_code
from flsel.files import check_regular, home
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
        path: A JSON file: ``{client: [indices]}``, a list of lists of indices, or a list with the client of
            every example, -1 for nobody. Or an npz file with one array of indices for each client, or a npy
            file with the client of every example.
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
        if isinstance(content, Mapping):
            content = [content[name] for name in sorted(content, key=_in_order)]
        if isinstance(content, np.ndarray) or (content and not isinstance(content[0], Sequence | np.ndarray)):
            return self._owners(_whole(content, f"partition.path {self.path}"), len(labels))
        owner = np.full(len(labels), -1, dtype=np.int64)
        for client, listed in enumerate(content):
            where = f"partition.path {self.path}, client {client}"
            indices = _whole(listed, where)
            if len(indices) == 0:
                raise UserError(f"{where} must have examples, got none: leave the client out.")
            if len(indices) and (indices.min() < 0 or indices.max() >= len(labels)):
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
        return _with_clients(owner, self.path)


def _read(path: Path) -> Any:
    """Return what a file holds: a mapping, a list, or an array."""
    if not path.is_file():
        raise UserError(f"partition.path must be a JSON, npz or npy file, but there is no file {path}.")
    check_regular(path)
    with users_code(f"partition.path {path} cannot be read", reads=True):
        if path.suffix in (".npz", ".npy"):
            found = np.load(path, allow_pickle=False)
            return found if isinstance(found, np.ndarray) else dict(found)
        content = parse_json(path.read_bytes())
    if not isinstance(content, dict | list):
        raise UserError(f"partition.path {path} must hold a mapping or a list, got {shown(content)}.")
    return content


def _in_order(name: str) -> list[tuple[bool, int, str]]:
    """Sort names as people count: runs of digits in them by their numbers, before other characters."""
    return [
        (not part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]


def _whole(values: Any, where: str) -> np.ndarray:
    with users_code(f"{where} has no list of numbers", reads=True):
        array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        raise UserError(f"{where} must have a list of whole numbers, got {shown(values)}.")
    return array.astype(np.int64)


def _with_clients(owner: np.ndarray, path: str) -> np.ndarray:
    if owner.max(initial=-1) < 0:
        raise UserError(f"partition.path {path} must give some client examples, and it gives nobody any.")
    return owner
