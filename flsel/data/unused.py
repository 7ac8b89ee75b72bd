"""What lies beside a dataset's files: which folder is which part, what is hidden, what was not used."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from flsel.errors import UserError, short

_LOG = logging.getLogger("flsel")
_PARTS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
# Of editors, systems and network storage: .ipynb_checkpoints, ._a.png, @eaDir, #recycle, $RECYCLE.BIN.
_HIDDEN = (".", "@", "#", "$", "~", "__MACOSX", "__pycache__", "System Volume Information")
_SHOWN = 8


def part_of(name: str) -> str | None:
    """Return ``train``, ``validation`` or ``test`` for one of the names that they go by, in any case."""
    return next((part for part, names in _PARTS.items() if name.lower() in names), None)


class Unused:
    """What a reader finds in a folder, or among the names of a file, and does not use.

    Args:
        where: The folder or file.
    """

    def __init__(self, where: Path) -> None:
        self._where = where
        self._names: list[str] = []

    def add(self, what: Path | str) -> None:
        """Note a file, a folder or a name."""
        inside = isinstance(what, Path) and what.is_relative_to(self._where)
        self._names.append(str(what.relative_to(self._where)) if inside else str(what))  # type: ignore[union-attr]

    def visible(self, folder: Path) -> list[Path]:
        """List a folder's entries that are not hidden, by name; note the others."""
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
        shown = [entry for entry in entries if not entry.name.startswith(_HIDDEN)]
        for entry in entries:
            if entry not in shown:
                self.add(entry)
        return shown

    def parts(self, *, folders: bool) -> dict[str, Path]:
        """Return the entries of the folder that are a part of the data, by part, training first.

        Args:
            folders: Parts are folders.

        Raises:
            UserError: If two are one part.
        """
        if not self._where.is_dir():
            return {}
        found: dict[str, Path] = {}
        for entry in self.visible(self._where):
            part = part_of(entry.name) if entry.is_dir() == folders else None
            if part is None:
                self.add(entry)
            elif part in found:
                raise UserError(f"{found[part]} and {entry} are both a {part} set: remove one of them.")
            else:
                found[part] = entry
        return {part: found[part] for part in _PARTS if part in found}

    def tell(self) -> None:
        """Say in the log what was not used."""
        if self._names:
            _LOG.warning("%s: not used: %s", self._where, _listed(self._names))


def _listed(names: Iterable[str]) -> str:
    every = [short(name, 60) for name in names]
    more = len(every) - _SHOWN
    return ", ".join(every[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
