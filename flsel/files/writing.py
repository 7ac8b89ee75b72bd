"""Files that are written whole or not at all, and what a failure to write is called."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from flsel.errors import UserError

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space (a run goes on with --resume)",
    errno.EDQUOT: "the disk quota is used up; free some space (a run goes on with --resume)",
    errno.EACCES: "permission denied; make the folder writable or choose another one",
    errno.EPERM: "permission denied; make the folder writable or choose another one",
    errno.EROFS: "the file system is read-only; choose another folder",
}


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
            with open_new(temporary) as stream:
                _fill(stream, data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def open_own(path: Path, flags: int) -> int:
    """Open a file of a folder for writing, and no other that somebody planted in its place.

    A link is not followed; a file with a second name (a hard link), a pipe or a device is not written to.

    Args:
        path: The file.
        flags: Of ``os.open``, such as ``os.O_WRONLY | os.O_APPEND | os.O_CREAT``.

    Returns:
        Its handle.

    Raises:
        UserError: If something else is in its place.
        OSError: If the system refuses.
    """
    odd = UserError(f"cannot write {path}, which is a link, a pipe or a device: remove it.")
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise odd from error
        raise
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_nlink < 2:
        return handle
    os.close(handle)
    if not stat.S_ISREG(found.st_mode):
        raise odd
    raise UserError(
        f"cannot write {path}, which is another file, too (a hard link): put a copy in its place."
    )


def open_new(path: Path) -> BinaryIO:
    """Open a new file; what is in its place, such as a link or the rest of a killed process, is removed."""
    path.unlink(missing_ok=True)
    return os.fdopen(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def make_folder(path: Path) -> None:
    """Create a folder inside that of a run, a sweep or a comparison, if it is missing.

    Raises:
        UserError: If a link is in its place, which leads to another folder, or it cannot be created.
    """
    refuse_link(path)
    with naming(path):
        path.mkdir(exist_ok=True)


def refuse_link(path: Path) -> None:
    """Refuse a link in the place of a folder inside that of a run.

    Raises:
        UserError: If there is one.
    """
    if path.is_symlink():
        raise UserError(f"{path} must be a folder, and is a link: remove it.")


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
        raise UserError(f"cannot write {path}: {reason(cause)}.") from error


def sync_folder(folder: Path) -> None:
    """Make a folder's entries survive a power loss, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_regular(path: Path, named: object = None) -> None:
    """Refuse to read a pipe or a device, which may block or never end; a missing file passes.

    Args:
        path: What is about to be read.
        named: What the message calls it, instead of its path.

    Raises:
        UserError: If there is something at the path that is neither a file nor a folder.
    """
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError):  # the code that opens it reports the error
        return
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise UserError(f"{named or path} is a pipe or a device; give a regular one.")


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


def reason(error: OSError) -> str:
    """Say why the system refused, and what would help."""
    return _REASONS.get(error.errno or 0, (error.strerror or str(error)).lower())
