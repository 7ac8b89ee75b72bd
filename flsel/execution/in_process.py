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
from flsel.execution.stack_rounds import StackRounds
from flsel.runner.session import Session

# Most runs in a stack: all are in memory.
_MOST = 8


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
        record = StackRounds(folder)
        begun = record.begun(jobs)
        others = [job for job in jobs if job not in begun]
        # A run that failed once is not stacked with those that would have gone on without it.
        failed = [job for job in others if job.outcome.status == "failed"]
        left = len(jobs)
        for part in (begun, [job for job in others if job not in failed], failed):
            for runs in self._stacks(part, listener.ended):
                left -= len(runs)
                if _execute_stack(runs, record, listener.advanced) and left:
                    raise Interrupted(f"stopped with {left} runs left")

    def _stacks(self, jobs: Sequence[Job], ended: Callable[[Job], None]) -> Iterator[list[ActiveRun]]:
        """Yield runs, built, that are executed together."""
        together: list[ActiveRun] = []
        for job in jobs:
            run = ActiveRun(job.folder, partial(self._session, job), partial(ended, job))
            if together and (run.kind != together[0].kind or len(together) == _MOST):
                yield together
                together = []
            together.append(run)
            if run.kind is None:
                yield together
                together = []
        if together:
            yield together

    def _session(self, job: Job) -> Session:
        return job.session(self._shared or self._sources.get(job.config), self._workers)


def _execute_stack(runs: Sequence[ActiveRun], record: StackRounds, advanced: Callable[[int], None]) -> bool:
    def round_ended(run: ActiveRun, record: RoundRecord) -> None:
        advanced(record.completed - record.round)

    if len(runs) == 1:
        with Stack(runs, round_ended) as stack:
            return stack.execute_until_signal()
    with Stack(runs, round_ended, record.keep) as stack:
        stopped = stack.execute_until_signal()
    record.clear()
    return stopped
