"""Run ``flsel tune`` or ``compare`` in a process of its own, and start it again where Ray takes it down.

A driver whose Ray daemon dies is ended by Ray from within, without a word of Python. So a small process stays
outside, passes signals on, and resumes the sweep or comparison in a new one.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

from flsel.errors import Interrupted, UserError, going_on
from flsel.execution.on_ray.cluster_cleanup import end_cluster

_LIVES = 4
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

_pipe = -1


def tell(kind: str, value: str = "") -> None:
    """Tell the process outside what it has to know, if there is one.

    Args:
        kind: ``work`` (a sweep or a comparison) or ``cluster``, with its folder, ``why``, with that of a
            death, or ``end``, with the exit code where there is one.
        value: What of it.
    """
    if _pipe >= 0:
        os.write(_pipe, f"{json.dumps([kind, value])}\n".encode())  # a folder's name may hold anything


def die(why: str) -> None:
    """End this process as Ray does where its daemon is dead, if there is one outside to start another.

    Args:
        why: The reason, for the screen.
    """
    if _pipe >= 0:
        tell("why", why)
        sys.stdout.flush()
        os._exit(1)


def die_of_sigterm() -> None:
    """Let SIGTERM end a process of Ray, so that another resumes its job; Ray would raise it in the job."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def supervise(
    arguments: list[str],
    command: Callable[[Sequence[str]], int],
    *,
    name: str = "tune",
    again: Sequence[str] = (),
) -> int:
    """Run a command in another process until it ends by its own account.

    Args:
        arguments: Its arguments; after a death it is given those that resume its work.
        command: The command.
        name: Its name, for messages.
        again: What a command that resumes is given besides.

    Returns:
        Its exit code.

    Raises:
        UserError: If it died too often, or before there was a cluster or anything to resume.
        Interrupted: If a signal ended it before it could stop by itself.
    """
    work, how = "", ""
    for _ in range(_LIVES):
        read, write = os.pipe()
        # A signal waits until its handler is installed.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        parent, child = os.getpid(), os.fork()
        if child == 0:
            os.close(read)
            return _inside(parent, write, arguments, command)
        os.close(write)
        code, messages, stopped = _outside(child, read)
        if "cluster" in messages:
            end_cluster(messages["cluster"])
        # A process that has nothing to save yet ends at once; while Ray starts or ends, Ray ends it.
        if "end" in messages and not (stopped and code in (1, signal.SIGTERM)):
            return int(messages["end"] or code)
        died = f"signal {-code}" if code < 0 else f"code {code}"
        how = messages.get("why", f"Ray's daemon or the process of flsel {name} died ({died})")
        work = messages.get("work", work)
        if stopped:
            then = f"continue with: {going_on(name, work)}" if work else "nothing was begun"
            raise Interrupted(f"stopped; {then}")
        if not work and "cluster" not in messages:
            raise UserError(f"the process of flsel {name} died before its first run ({died}).")
        print(f"flsel: warning: {how}; it is started again", file=sys.stderr)
        # Ray is started before a sweep has a folder: then there is nothing to resume, and nothing lost.
        arguments = ["--resume", work, *again] if work else arguments
    then = f"go on with {going_on(name, work)}" if work else "nothing was begun"
    raise UserError(f"{how}, {_LIVES} times in a row; memory may be short; {then}.")


def _inside(
    parent: int, write: int, arguments: Sequence[str], command: Callable[[Sequence[str]], int]
) -> int:
    global _pipe
    _pipe = write
    # What the parent is sent it passes on: Ctrl-C in a terminal would otherwise come twice.
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        code = command(arguments)
    except BaseException:
        tell("end")
        raise
    tell("end", str(code))
    return code


def _outside(child: int, read: int) -> tuple[int, dict[str, str], bool]:
    """Wait for a process; return its exit code, its messages, and whether it was sent a signal.

    The exit code is less than zero where a signal ended it.
    """
    sent = list[int]()

    def pass_on(number: int, frame: FrameType | None) -> None:
        sent.append(number)
        with suppress(ProcessLookupError):
            os.kill(child, number)

    heeded = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in heeded}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    try:
        with os.fdopen(read, encoding="utf-8") as stream:
            messages = dict(json.loads(line) for line in stream if line.endswith("\n"))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), messages, bool(sent)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
