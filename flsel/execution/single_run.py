"""One run at a time in a process: its threads share torch's settings, the global generators and signals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flsel.errors import UserError

# A callback may execute a run of its own within a run.
_EXECUTING = threading.RLock()


@contextmanager
def single_run() -> Iterator[None]:
    """Allow one run per process.

    Raises:
        UserError: If another thread executes a run.
    """
    if not _EXECUTING.acquire(blocking=False):
        raise UserError(
            "another thread of this process executes a run, and both would draw from the same generators: "
            "execute runs one after the other, or each in a process of its own."
        )
    try:
        yield
    finally:
        _EXECUTING.release()
