"""Folders of runs, sweeps and comparisons: named, claimed by one of them, and recognised."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from flsel.errors import UserError, short
from flsel.files.escaping import one_line
from flsel.files.writing import reason, write_atomic

RUN_ID_FILE = ".run-id"
_LONGEST_NAME = 240  # bytes; file systems take 255, and a suffix may follow


def check_folder_name(key: str, name: str | None) -> None:
    """Refuse what is no name of a folder; None stands for a name that is made.

    Raises:
        UserError: If it is a path, or nothing, or longer than file systems take with a suffix.
    """
    if name is not None and (name in ("", ".", "..") or "/" in name):
        raise UserError(f"{key} must be a plain folder name, got {name!r}.")
    if name is not None and one_line(name) != name:
        raise UserError(
            f"{key} must be a folder name without control characters, line breaks or marks of direction, got "
            f"{one_line(name)}."
        )
    if name is not None and len(os.fsencode(name)) > _LONGEST_NAME:
        raise UserError(
            f"{key} must be a folder name of at most {_LONGEST_NAME} bytes, got {len(os.fsencode(name))}."
        )


def check_folder(folder: Path, kind: str, *files: str) -> None:
    """Refuse what is not the folder of a run, a sweep or a comparison.

    Args:
        folder: The folder.
        kind: What it should be the folder of.
        files: What such a folder holds.

    Raises:
        UserError: If it is missing, or a file in it.
    """
    if not folder.is_dir():
        usual = {"run": "runs/ or output.dir", "race": "choices/ or `folder`"}
        below = usual.get(kind, f"{kind}s/ or `folder`")
        raise UserError(f"there is no folder {folder}; a {kind}'s folder is below {below}.")
    for file in files:
        if not (folder / file).is_file():
            raise UserError(f"{folder} is not the folder of a {kind}: it holds no {file}.")


def new_run_dir(root: str | Path, name: str, setting: str = "output.dir") -> Path:
    """Create the folder of a new run: ``root/name``, or ``name-2``, ``name-3``, ... if that holds files.

    Two processes that ask at the same moment get two folders: each claims its own by creating the file
    ``.run-id``, which holds an id that the folder keeps for life.

    Args:
        root: Folder of all runs (``output.dir``), created if missing; ``~`` is the user's home.
        name: Name of the run.
        setting: The setting that ``root`` is, for messages.

    Returns:
        The folder; nothing is in it but ``.run-id``.

    Raises:
        UserError: If the folder cannot be created.
    """
    root, count = home(root), 1
    path = root / name
    while not _claim(path, setting):
        count += 1
        path = root / f"{name}-{count}"
    return path


def home(path: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` and ``~name`` replaced by the home folder.

    Raises:
        UserError: If it is no path, or empty, there is no such user, or no home.
    """
    if path == "":
        raise UserError("a file or folder must not be an empty text; the current folder is `.`.")
    try:
        return Path(path).expanduser()
    except TypeError as error:
        raise UserError(f"a file or folder is a text or a pathlib.Path, got {short(repr(path))}.") from error
    except RuntimeError as error:
        raise UserError(f"there is no home folder for {path}; write the folder out.") from error


def run_id(run_dir: Path) -> str:
    """Return the id of a run's folder, the same after a resume or a move; give it one if it has none."""
    path = run_dir / RUN_ID_FILE
    stored = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if not stored:
        stored = _new_id()
        write_atomic(path, stored + "\n")
    return stored


def _claim(path: Path, setting: str) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            return False
        with open(path / RUN_ID_FILE, "x", encoding="utf-8") as stream:
            stream.write(_new_id() + "\n")
    except FileExistsError:
        return _refuse_blocked_root(path, setting)
    except OSError as error:
        raise UserError(
            f"cannot create the run folder {path}: {reason(error)}; set `{setting}` to a writable folder."
        ) from error
    return True


def _refuse_blocked_root(path: Path, setting: str) -> bool:
    if not path.parent.is_dir():
        raise UserError(
            f"cannot create the run folder {path}: {path.parent} is not a folder; "
            f"set `{setting}` to a writable folder."
        )
    return False


def _new_id() -> str:
    return secrets.token_hex(4)
