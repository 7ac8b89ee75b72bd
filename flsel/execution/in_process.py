"""Executes jobs in this process: one after the other, or in stacks where their clients train in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from flsel.data.population import Source
from flsel.engine.server import RoundRecord
from flsel.errors import Interrupted
from flsel.execution.active_run import ActiveRun
from flsel.execution.executor import Listener, Sources
from flsel.execution.job import Job
from flsel.execution.on_ray.workers import Workers, workers
from flsel.execution.stack import Stack
from flsel.execution.stack_rounds import StackRounds, begun, forget
from flsel.runner.session import Session

MOST = 8
"""Most runs in a stack: all are in memory."""


class InProcess:
    """The executor of this process (see :class:`flsel.execution.executor.Executor`)."""

    def __init__(self) -> None:
        self._sources = Sources()
        self._shared: Source | None = None
        self._workers: Workers | None = None

    @contextmanager
    def ready(self, shared: Source | None) -> Iterator[None]:
        """Keep the dataset, and the processes that jobs ask for by ``local.workers``."""
        self._shared = shared
        with workers() as self._workers:
            yield

    def execute(self, jobs: Sequence[Job], folder: Path, listener: Listener) -> None:
        """Execute jobs (see :meth:`flsel.execution.executor.Executor.execute`)."""
        left = len(jobs)
        for part in parts(folder, jobs):
            for runs in stacks(part, self._session, listener.ended):
                left -= len(runs)
                if _execute_stack(runs, folder, listener.advanced) and left:
                    raise Interrupted(f"stopped with {left} runs left")
        forget(folder)

    def _session(self, job: Job) -> Session:
        return job.session(self._shared or self._sources.get(job.config), self._workers)


def parts(folder: Path, jobs: Sequence[Job]) -> list[list[Job]]:
    """Part jobs into those of each stack that was stopped, those that wait, and those that failed.

    A run that failed once is not stacked with those that would have gone on without it.
    """
    stopped = begun(folder, jobs)
    again = {job for part in stopped for job in part}
    others = [job for job in jobs if job not in again]
    failed = [job for job in others if job.outcome.status == "failed"]
    return [*stopped, [job for job in others if job not in failed], failed]


def stacks(
    jobs: Sequence[Job], session: Callable[[Job], Session], ended: Callable[[Job], None]
) -> Iterator[list[ActiveRun]]:
    """Yield runs, built, that are executed together.

    Args:
        jobs: Their jobs; those of a stack stand side by side.
        session: Builds the session of a job.
        ended: Called with every job that ended.
    """
    together: list[ActiveRun] = []
    for job in jobs:
        run = ActiveRun(job.folder, partial(session, job), partial(ended, job))
        if together and (run.kind != together[0].kind or len(together) == MOST):
            yield together
            together = []
        together.append(run)
        if run.kind is None:
            yield together
            together = []
    if together:
        yield together


def _execute_stack(runs: Sequence[ActiveRun], folder: Path, advanced: Callable[[int], None]) -> bool:
    def round_ended(run: ActiveRun, record: RoundRecord) -> None:
        advanced(record.completed - record.round)

    record = StackRounds(folder, [run.folder for run in runs])
    with Stack(runs, round_ended, record.keep) as stack:
        stopped = stack.execute_until_signal()
    record.clear()
    return stopped
