"""One writer for each folder: a lock of the operating system, which ends with its process however that dies.

POSIX record locks: forked children do not inherit them, and NFS and other network file systems with a lock
manager pass them to all hosts. On a file system without locks the note in the lock file has to do: it tells a
living process of this host, and leaves it to the user whether one of another host still lives.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import weakref
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from flsel.errors import UserError
from flsel.files import naming, open_own

LOCK_FILE = ".lock"

_LOG = logging.getLogger("flsel")
_HELD_ELSEWHERE = (errno.EACCES, errno.EAGAIN)
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
# Lock files of this process, by device and inode: record locks do not tell its own threads apart, and closing
# any handle of a file gives up all of them.
_ours: set[tuple[int, int]] = set()


class LockedError(UserError):
    """Another process, or another part of this one, writes to a folder."""


class Lock:
    """The right to write to a folder; a context manager.

    Args:
        folder: A folder that exists.
        kind: What it holds, for the message: ``run``, ``sweep``, ``comparison``.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._path = folder / LOCK_FILE
        self._kind = kind
        self._release: weakref.finalize[Any, Any] | None = None

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock, or refuse at once.

        Raises:
            LockedError: If another process, or another part of this one, holds it.
            UserError: If the folder is read-only.
        """
        with suppress(OSError):  # said, where it matters, by the call that opens it
            if _key(os.stat(self._path)) in _ours:
                raise self._refusal({"host": socket.gethostname(), "pid": os.getpid()})
        if self._path.is_dir():
            raise UserError(f"cannot lock {self._path}, which is a folder: remove it.")
        with naming(self._path):
            if self._path.is_symlink() or self._path.is_fifo():
                self._path.unlink()  # no lock of flsel's
            handle = open_own(self._path, os.O_RDWR | os.O_CREAT)
        try:
            self._lock(handle)
            if _key(os.lstat(self._path)) != _key(os.fstat(handle)):  # somebody removed it in between
                raise self._refusal({})
        except BaseException:
            os.close(handle)
            raise
        with suppress(OSError):  # a full disk; the lock holds without the note
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(_me()).encode(), 0)
        key = _key(os.fstat(handle))
        _ours.add(key)
        self._release = weakref.finalize(self, _give_up, handle, key, os.getpid())

    def release(self) -> None:
        """Give the lock up, if it is held."""
        if self._release is not None:
            self._release()

    def _lock(self, handle: int) -> None:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            note = _note(handle)
            if error.errno in _HELD_ELSEWHERE:
                raise self._refusal(note) from None
            if error.errno not in _WITHOUT_LOCKS:
                raise UserError(
                    f"cannot lock {self._path}: {(error.strerror or str(error)).lower()}."
                ) from None
            if note and _may_live(note):
                raise self._refusal(note, f", or remove {self._path} if it is dead") from None
            _LOG.warning(
                "the file system of %s has no locks: let no second process write there", self._path.parent
            )

    def _refusal(self, note: dict[str, Any], otherwise: str = "") -> LockedError:
        who = f"process {note['pid']} on {note['host']}" if note else "another process"
        since = f" since {note['since']}" if "since" in note else ""
        return LockedError(
            f"{self._kind} {self._path.parent} is being written by {who}{since}: wait for it or stop it"
            f"{otherwise}."
        )


def _me() -> dict[str, Any]:
    since = datetime.now().isoformat(sep=" ", timespec="seconds")
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": since}


def _note(handle: int) -> dict[str, Any]:
    """Return the note of the process that locked last; empty if it released the lock or left none."""
    with suppress(OSError, ValueError):
        note = json.loads(os.pread(handle, 1000, 0))
        if isinstance(note, dict) and {"host", "pid"} <= note.keys():
            return note
    return {}


def _may_live(note: dict[str, Any]) -> bool:
    if note["host"] != socket.gethostname():
        return True
    try:
        os.kill(int(note["pid"]), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _give_up(handle: int, key: tuple[int, int], pid: int) -> None:
    # A forked child has a copy of the handle, and no lock.
    if os.getpid() == pid:
        with suppress(OSError):
            os.ftruncate(handle, 0)
        _ours.discard(key)
    with suppress(OSError):
        os.close(handle)
