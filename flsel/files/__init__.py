"""Files of a run: written whole or not at all, and never over another run's."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from flsel.errors import UserError

RUN_ID_FILE = ".run-id"
_LONGEST_NAME = 240  # bytes; file systems take 255, and a suffix may follow

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space (a run goes on with --resume)",
    errno.EDQUOT: "the disk quota is used up; free some space (a run goes on with --resume)",
    errno.EACCES: "permission denied; make the folder writable or choose another one",
    errno.EPERM: "permission denied; make the folder writable or choose another one",
    errno.EROFS: "the file system is read-only; choose another folder",
}


def check_folder_name(key: str, name: str | None) -> None:
    """Refuse what is no name of a folder; None stands for a name that is made.

    Raises:
        UserError: If it is a path, or nothing, or longer than file systems take with a suffix.
    """
    if name is not None and (name in ("", ".", "..") or "/" in name):
        raise UserError(f"{key} must be a plain folder name, got {name!r}.")
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
        below = "runs/ or output.dir" if kind == "run" else f"{kind}s/ or `folder`"
        raise UserError(f"there is no folder {folder}; a {kind}'s folder is below {below}.")
    for file in files:
        if not (folder / file).is_file():
            raise UserError(f"{folder} is not the folder of a {kind}: it holds no {file}.")


def write_atomic(path: str | Path, data: str | bytes | Callable[[BinaryIO], None]) -> None:
    """Write a file so that a kill or a power loss leaves either the old one or the new one.

    The bytes go to ``.<name>.tmp`` in the same folder, reach the disk, and take the name in one step. A path
    has one writer at a time.

    Args:
        path: File to create or replace; its folder exists.
        data: Text (stored as UTF-8), bytes, or a function that writes to the open file.

    Raises:
        UserError: If the file cannot be written: full disk, folder not writable.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming(path):
            with open(temporary, "wb") as stream:
                _fill(stream, data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_files(paths: Sequence[Path]) -> None:
    """Make what was written to files survive a power loss.

    Args:
        paths: The files; what is missing is left out. They wait for the disk together, not one after another.

    Raises:
        UserError: If the system cannot.
    """
    with ThreadPoolExecutor(len(paths)) as pool:
        for _ in pool.map(_sync, paths):  # raises what they raised
            pass


def _sync(path: Path) -> None:
    if path.exists():
        with naming(path), open(path, "rb") as stream:
            os.fsync(stream.fileno())


def check_regular(path: Path, named: object = None) -> None:
    """Refuse to read a pipe or a device, which may wait or go on for ever; what is missing passes.

    Args:
        path: What is about to be read.
        named: What the message calls it, instead of its path.

    Raises:
        UserError: If there is something at the path that is neither a file nor a folder.
    """
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError):  # said, in its own words, by whoever opens it
        return
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise UserError(f"{named or path} is a pipe or a device; give a regular one.")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Turn a failure to write into one sentence that names the path.

    Args:
        path: File or folder that the block writes.

    Raises:
        UserError: If the block raises an ``OSError``, or an error that one caused.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = _os_error(error)
        if cause is None:
            raise
        raise UserError(f"cannot write {path}: {_reason(cause)}.") from error


def sync_folder(folder: Path) -> None:
    """Make a folder's entries survive a power loss, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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


def home(path: str | Path) -> Path:
    """Return a path with ``~`` and ``~name`` replaced by the home folder.

    Raises:
        UserError: If there is no such user, or no home.
    """
    try:
        return Path(path).expanduser()
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
            f"cannot create the run folder {path}: {_reason(error)}; set `{setting}` to a writable folder."
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


def _fill(stream: BinaryIO, data: str | bytes | Callable[[BinaryIO], None]) -> None:
    if callable(data):
        data(stream)
    else:
        stream.write(data.encode() if isinstance(data, str) else data)


def _os_error(error: BaseException | None) -> OSError | None:
    # torch.save hides a full disk behind a RuntimeError; the system's error is in its context.
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def _reason(error: OSError) -> str:
    return _REASONS.get(error.errno or 0, (error.strerror or str(error)).lower())
