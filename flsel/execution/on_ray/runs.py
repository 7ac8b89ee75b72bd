"""The executor on Ray: single runs as jobs, several at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flsel.config import RunConfig
from flsel.data.population import Source
from flsel.errors import Interrupted, UserError, going_on
from flsel.execution.active_run import ActiveRun
from flsel.execution.executor import Listener, Resources
from flsel.execution.job import Job, Outcome, write_failure
from flsel.execution.on_ray.cluster import cluster
from flsel.execution.on_ray.deaths import note_death, out_of_memory
from flsel.execution.on_ray.shared_data import Packed, pack
from flsel.execution.stack import Stack
from flsel.runner.session import Session

_REPORTS = 50

Report = dict[str, Any]


class OnRay:
    """The executor on Ray (see :class:`flsel.execution.executor.Executor`).

    A job whose process dies is resumed by another from its checkpoint; one that dies more often than
    ``retries`` allows has failed.

    Args:
        resources: How many jobs at a time, and what each needs.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._packed: Packed | None = None

    @contextmanager
    def ready(self, shared: Source | None) -> Iterator[None]:
        """Start Ray or connect to a cluster (see :meth:`flsel.execution.executor.Executor.ready`)."""
        self._packed = None if shared is None else pack(shared)
        with cluster(self._resources, 0 if self._packed is None else self._packed.size):
            yield

    def execute(self, jobs: Sequence[Job], folder: Path, listener: Listener) -> None:
        """Execute jobs (see :meth:`flsel.execution.executor.Executor.execute`)."""
        # Ray reads its settings from the environment when it is imported; cluster() has set them.
        from flsel.execution.on_ray.sent_objects import with_objects
        from flsel.execution.on_ray.tune_loop import execute_with_tune

        runs = _Runs(jobs, listener)
        again = going_on("compare", folder)
        settings = [job.config.to_dict() for job in jobs]
        begin = with_objects(ReportingRun, settings, shared_data=self._packed is not None)
        execute_with_tune(runs, begin, self._packed, folder.resolve(), self._resources, again=again)
        if runs.refused:
            raise UserError(runs.refused)
        if runs.left:
            raise Interrupted(f"stopped with {runs.left} runs left")


class _Runs:
    """Runs as Ray's workload (see :class:`flsel.execution.on_ray.dispatcher.Workload`)."""

    def __init__(self, jobs: Sequence[Job], listener: Listener) -> None:
        self._jobs = list(jobs)
        self._waiting = list(range(len(jobs)))
        self._listener = listener
        self._rounds = dict[int, int]()
        self.left = len(jobs)
        self.refused = ""

    def next(self) -> tuple[int, Report] | None:
        if not self._waiting:
            return None
        number = self._waiting.pop(0)
        job = self._jobs[number]
        place = {"folder": str(job.folder.resolve()), "tracked": job.tracked, "labelled": job.labelled}
        return number, {**place, "config": job.config.to_dict()}

    def name(self, number: int) -> str:
        return str(self._jobs[number].folder)

    def folder(self, number: int) -> Path:
        return self._jobs[number].folder

    def stops(self, number: int, report: Report) -> bool:
        return False

    def reported(self, number: int, settings: Report, report: Report) -> None:
        before = self._rounds.get(number, int(report["began"]))
        self._rounds[number] = max(before, report["round"])
        self._listener.advanced(self._rounds[number] - before)
        self.refused = self.refused or report["refused"]

    def ended(self, number: int, report: Report, died: str | None) -> None:
        job = self._jobs[number]
        if died is not None:
            job.folder.mkdir(parents=True, exist_ok=True)
            write_failure(job.folder, Outcome("failed", died))
        self.left -= 1
        self._listener.ended(job)


class ReportingRun:
    """One run in a process of Ray's (see :class:`flsel.execution.on_ray.actor.ReportingJob`).

    Args:
        number: The job's number.
        settings: The job as :class:`OnRay` sends it.
        source: The dataset, if all jobs have the same.
    """

    def __init__(self, number: int, settings: dict[str, Any], source: Source | None) -> None:
        self._settings, self._source = settings, source
        self._folder = Path(settings["folder"])
        self._folder.mkdir(parents=True, exist_ok=True)
        config = settings["config"]
        # A report takes Ray's time, so that a run makes no more than fifty.
        self._every = max(config["output"]["checkpoint_every"], math.ceil(config["rounds"] / _REPORTS))
        self._run = ActiveRun(self._folder, self._session)
        self._stack = Stack([self._run])
        self._began: int | None = None

    def advance(self) -> Report:
        """Execute up to the next report, which comes with a checkpoint.

        Returns:
            ``round``; ``began``, where this process began; ``done``, whether the run has ended; ``refused``,
            why nothing can be written, or nothing.
        """
        refused = ""
        try:
            if self._began is None:
                self._stack.open()
                self._began = self._round
            self._stack.execute(until=(self._round // self._every + 1) * self._every)
        except UserError as error:  # not the run's: the record of its failure cannot be written, say
            self.close()
            refused = str(error)
        if lack := out_of_memory(self._run.error):
            note_death(self._folder, lack)
            assert self._run.error is not None
            raise self._run.error
        done = bool(refused) or not self._run.active
        return {"round": self._round, "began": self._began or 0, "done": done, "refused": refused}

    def close(self) -> None:
        """Let others have the run's folder."""
        self._stack.close()

    @property
    def _round(self) -> int:
        return self._run.round if self._run.opened else 0

    def _session(self) -> Session:
        sent = self._settings
        config = RunConfig.from_dict(sent["config"])
        job = Job(config, self._folder, tracked=sent["tracked"], labelled=sent["labelled"])
        return job.session(self._source)
