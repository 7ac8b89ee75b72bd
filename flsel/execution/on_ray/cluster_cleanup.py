"""End processes that a local Ray cluster leaves behind, even if the process that started it was killed.

:class:`ClusterCleanup` runs it as a program that needs the standard library only. The program waits until the
process that started it ends, also by ``kill -9``, and kills every process with the cluster's mark. Ray ends a
process whose cluster dies without a word of Python, so the program says what died, and how to resume.
"""

from __future__ import annotations

import os
import select
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
_GRACE = 2.0
_DAEMONS = {b"raylet": "Ray's daemon", b"gcs_server": "Ray's store of the cluster's state"}
_CLOSED = b"closed\0"  # by the process itself; any other message says how to resume

_advice = ""
_running: ClusterCleanup | None = None


def resume_by(advice: str) -> None:
    """Say how to resume what this process does, for the sentence after its death: ``continue with: ...``."""
    global _advice
    _advice = advice
    if _running is not None:
        _running.send(advice.encode())


def resume_advice() -> str:
    """Return what :func:`resume_by` was told last."""
    return _advice


class ClusterCleanup:
    """A small process that outlives this one and ends a cluster's processes as soon as this one is gone.

    Ray's agents and workers notice the loss of their driver late or not at all: they would hold memory, and
    go on writing to runs that a resumed sweep wants. Where there is no ``/proc``, nothing is watched.

    Args:
        folder: The cluster's folder, which is removed with it; empty for a cluster that others started.
    """

    def __init__(self, folder: str) -> None:
        global _running
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        if hasattr(os, "pidfd_open") and Path("/proc/self/environ").exists():
            read, self._write = os.pipe()
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", __file__, str(read), str(os.getpid()), folder],
                pass_fds=(read,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # out of reach of Ctrl-C
                cwd="/",
            )
            os.close(read)
            _running = self
            if not folder:
                self.send(_advice.encode())

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Give the mark to processes that are started within; their daemons are watched from then on."""
        os.environ[MARK] = self._folder
        try:
            yield
        finally:
            del os.environ[MARK]
        self.send(_advice.encode())

    def send(self, message: bytes) -> None:
        """Send a message to the process, which looks for daemons then."""
        if self._process is not None:
            with suppress(BrokenPipeError):  # it was killed
                os.write(self._write, message + b"\0")

    def close(self) -> None:
        """Have what is left of the cluster ended now, and its folder removed."""
        global _running
        _running = None
        if self._process is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        self.send(_CLOSED[:-1])
        os.close(self._write)
        self._process.wait()


def end_cluster(folder: str) -> None:
    """Kill every process that carries a cluster's mark, until no more come after, and remove its folder."""
    deadline, quiet = time.monotonic() + _PATIENCE, 0
    while quiet < _QUIET and time.monotonic() < deadline:
        killed = False
        for _, handle in _members(folder):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                killed = True
            os.close(handle)
        quiet = 0 if killed else quiet + 1
        time.sleep(_PAUSE)
    shutil.rmtree(folder, ignore_errors=True)


def _members(folder: str) -> Iterator[tuple[bytes, int]]:
    """Yield the command line of each process of the cluster in a folder, and a handle to close.

    A handle, because the number may be another process's by the time it is used.
    """
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it is gone, or belongs to another user
            handle = os.pidfd_open(int(name))
            words = b""
            with suppress(OSError):
                words = _words(Path("/proc", name), folder)
            if words:
                yield words, handle
            else:
                os.close(handle)


def _words(process: Path, folder: str) -> bytes:
    """Return the command line of a process that has the cluster's mark, or is one of Ray's that writes there.

    Ray's agents and workers write a title over their environment, and the mark with it.
    """
    words = (process / "cmdline").read_bytes()
    if f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
        return words
    ours = words.startswith(b"ray::") and any(
        os.readlink(handle).startswith(f"{folder}/") for handle in (process / "fd").iterdir()
    )
    return words if ours else b""


def _main(pipe: int, driver: int, folder: str) -> None:
    """Wait until a process ends or sends that it does, or a daemon of its cluster dies, which ends it too."""
    messages, died, daemons = b"", "", dict[int, str]()
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(driver)
        while not messages.endswith(_CLOSED):
            ready, _, _ = select.select([handle, pipe, *daemons], [], [], _GRACE if died else None)
            if pipe in ready and (message := os.read(pipe, 65536)):
                messages += message
                if folder and not died and not daemons:
                    daemons = _daemons(folder)
            elif handle in ready or pipe in ready:
                break
            elif ready:
                if select.select([handle], [], [], _PAUSE)[0]:  # whose death is what ended the daemon
                    break
                died, daemons = daemons[ready[0]], {}
                end_cluster(folder)
            else:  # Ray may take a minute to end a process whose cluster is gone
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    if folder:
        end_cluster(folder)
    if not messages.endswith(_CLOSED):
        died = died or ("The process of flsel" if folder else "The process of flsel, or Ray's daemon,")
        *_, last = [b"", *messages.split(b"\0")[:-1]]
        advice = last.decode() or "nothing was begun"
        with suppress(OSError):
            os.write(2, f"flsel: error: {died} died, perhaps for lack of memory; {advice}\n".encode())


def _daemons(folder: str) -> dict[int, str]:
    """Return handles of a cluster's daemons, and what a sentence calls each."""
    handles = dict[int, str]()
    for words, handle in _members(folder):
        name = _DAEMONS.get(Path(words.split(b"\0")[0].decode(errors="replace")).name.encode())
        if name:
            handles[handle] = name
        else:
            os.close(handle)
    return handles


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
