"""The settings that flsel brings along, found by name: whole runs, the papers' settings, search spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flsel.errors import UserError, closest
from flsel.files import home

RUNS, PAPERS, SEARCH = "runs", "papers", "search"
"""Folders of whole runs, of the papers' settings, and of search spaces."""


@dataclass(frozen=True)
class Shipped:
    """One file.

    Attributes:
        name: What stands for it on the command line.
        kind: ``runs``, ``papers`` or ``search``.
        path: Where it is.
    """

    name: str
    kind: str
    path: Path

    @property
    def about(self) -> str:
        """What it is, in one line: the first of its comments."""
        with self.path.open(encoding="utf-8") as stream:
            return stream.readline().lstrip("# ").rstrip()


def shipped(*kinds: str) -> list[Shipped]:
    """List the files of some kinds, or all; the papers' keep their folders in their names."""
    folder = brought_along("configs")
    return [
        Shipped(_name(path.relative_to(folder)), kind, path)
        for kind in kinds or (RUNS, PAPERS, SEARCH)
        for path in sorted((folder / kind).rglob("*.yaml"))
    ]


def find(name: str, *kinds: str) -> Path:
    """Return the file that a path or a shipped name stands for.

    Args:
        name: Path of a file, which wins, or a name such as ``quickstart`` or ``papers/hics/cifar10``.
        kinds: Which shipped files fit.

    Raises:
        UserError: If it is neither.
    """
    path = home(name)
    if path.exists() and not path.is_dir():
        return path
    known = {file.name: file.path for file in shipped(*kinds)}
    if name not in known:
        if path.is_dir():
            raise UserError("this is a folder; give a file, such as config.yaml in the folder of a run.")
        raise UserError(f"there is no such file{_hint(name, list(known))}")
    return known[name]


def brought_along(name: str) -> Path:
    """Return a folder that flsel brings along: in the package where it was installed, else beside it."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return "/".join(parts if parts[0] == PAPERS else parts[1:])


def _hint(name: str, known: Sequence[str]) -> str:
    """Name the shipped file that was meant, also if its path in the repository was given."""
    wanted = name.removeprefix("configs/").removesuffix(".yaml")
    if not wanted.startswith(f"{PAPERS}/"):
        wanted = wanted.rpartition("/")[2]
    close = closest(wanted, known)
    if close:
        return f"; did you mean {close}, which flsel brings along?"
    return "." if "." in name else ", and flsel brings none of that name along (flsel configs lists them)."
