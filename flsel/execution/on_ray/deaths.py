"""Record and read why the process of a job died, if it could record the reason."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import torch

from flsel.errors import raised_at
from flsel.files import write_atomic

_NOTE = "out-of-memory.txt"
_CPU_ALLOCATOR = "DefaultCPUAllocator"  # What torch says of memory on the CPU, in a plain RuntimeError.


def die_of_sigterm() -> None:
    """Let SIGTERM end a process of Ray, so that another resumes its job; Ray would raise it in the job."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """Return the error that says that memory was lacking, which another job may have taken, or None."""
    while error is not None:
        refused = isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)
        if refused or isinstance(error, MemoryError | torch.OutOfMemoryError):
            return error
        error = error.__cause__  # the sentence that it was put into hides it
    return None


def note_death(folder: Path, error: BaseException) -> None:
    """Note in a job's folder that its process ends for lack of memory; another one may resume the job."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(
        folder / _NOTE,
        f"out of memory: {raised_at(error)}; lower max_concurrent, local.chunk or local.batch_size",
    )


def cause_of_death(folder: Path, raised: str | None = None) -> str:
    """Say why the processes of a job died.

    Args:
        folder: The job's folder.
        raised: What the last one raised, if it did.
    """
    note = folder / _NOTE
    said = f"its process raised {raised}" if raised else "its process died, perhaps out of memory"
    said = note.read_text(encoding="utf-8") if note.exists() else said
    return f"{said} (more often than `retries` allows)"
