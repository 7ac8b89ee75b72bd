"""End processes that a local Ray cluster leaves behind, even if the process that started it was killed.

:class:`ClusterCleanup` runs it as a program that needs the standard library only. The program waits until the
process that started it ends, also by ``kill -9``, and kills every process with the cluster's mark.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "FLSEL_CLUSTER"
"""Environment variable of a cluster's processes: its folder, a name that no other cluster has."""

_PAUSE = 0.1
_QUIET = 5
_PATIENCE = 20.0


class ClusterCleanup:
    """A small process that outlives this one and ends a cluster's processes as soon as this one is gone.

    Ray's agents and workers notice the loss of their driver late or not at all: they would hold memory, and
    go on writing to runs that a resumed sweep wants. Where there is no ``/proc``, nothing is watched.

    Args:
        folder: The cluster's folder, which is removed with it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        if hasattr(os, "pidfd_open") and Path("/proc/self/environ").exists():
            read, self._write = os.pipe()
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", __file__, str(read), folder],
                pass_fds=(read,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # out of reach of Ctrl-C
                cwd="/",
            )
            os.close(read)

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Give the mark to processes that are started within."""
        os.environ[MARK] = self._folder
        try:
            yield
        finally:
            del os.environ[MARK]

    def close(self) -> None:
        """Have what is left of the cluster ended now, and its folder removed."""
        if self._process is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        os.close(self._write)
        self._process.wait()


def end_cluster(folder: str) -> None:
    """Kill every process that carries a cluster's mark, until no more come after, and remove its folder."""
    deadline, quiet = time.monotonic() + _PATIENCE, 0
    while quiet < _QUIET and time.monotonic() < deadline:
        quiet = 0 if _kill(folder) else quiet + 1
        time.sleep(_PAUSE)
    shutil.rmtree(folder, ignore_errors=True)


def _kill(folder: str) -> bool:
    """Kill the processes of the cluster in a folder; tell whether there were any."""
    found = False
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it is gone, or belongs to another user
            # By a handle: the number may be another process's by the time it is killed.
            handle = os.pidfd_open(int(name))
            try:
                if _belongs(Path("/proc", name), folder):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    found = True
            finally:
                os.close(handle)
    return found


def _belongs(process: Path, folder: str) -> bool:
    """Tell whether a process has the cluster's mark, or is one of Ray's that writes to its folder.

    Ray's agents and workers write a title over their environment, and the mark with it.
    """
    if f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
        return True
    if not (process / "cmdline").read_bytes().startswith(b"ray::"):
        return False
    return any(os.readlink(handle).startswith(f"{folder}/") for handle in (process / "fd").iterdir())


def _main(pipe: int, folder: str) -> None:
    while os.read(pipe, 1):
        pass
    end_cluster(folder)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
