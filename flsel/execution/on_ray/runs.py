"""The executor on Ray: stacks of runs as jobs, several at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from flsel.config import RunConfig
from flsel.data.population import Source
from flsel.errors import Interrupted, UserError
from flsel.execution.executor import Listener, Resources, Sources
from flsel.execution.in_process import MOST, parts, stacks
from flsel.execution.job import FAILURE, Job, Outcome, write_failure
from flsel.execution.on_ray.cluster import cluster, room
from flsel.execution.on_ray.deaths import note_death, out_of_memory
from flsel.execution.on_ray.shared_data import Packed, pack
from flsel.execution.stack import Stack
from flsel.execution.stack_rounds import StackRounds, begun, forget
from flsel.runner.session import Session

_REPORTS = 50

Report = dict[str, Any]


class OnRay:
    """The executor on Ray (see :class:`flsel.execution.executor.Executor`).

    A process executes a stack of runs at a time. If it dies, another goes on from their checkpoints. A stack
    whose processes die more often than ``retries`` allows is executed run by run, and a run of which that is
    true has failed.

    Args:
        resources: How many processes at a time, and what each needs.
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

        runs = _Runs(self._groups(jobs, folder), folder, listener)
        settings = [job.config.to_dict() for job in jobs]
        begin = with_objects(ReportingRuns, settings, shared_data=self._packed is not None)
        execute_with_tune(runs, begin, self._packed, folder.resolve(), self._resources)
        if runs.refused:
            raise UserError(runs.refused)
        if runs.left:
            raise Interrupted(f"stopped with {runs.left} runs left")
        forget(folder)

    def _groups(self, jobs: Sequence[Job], folder: Path) -> list[list[Job]]:
        """Cut jobs into what a process gets at a time: as many for each, and no more than a stack holds."""
        *stopped, waiting, failed = parts(folder, jobs)
        # Who reserves memory for a run does not expect several in a process.
        most = 1 if self._resources.memory else MOST
        processes = room(self._resources)
        count = processes * math.ceil(len(waiting) / (processes * most))
        cuts = [len(waiting) * at // count for at in range(count + 1)] if waiting else [0]
        groups = [waiting[begin:end] for begin, end in pairwise(cuts) if end > begin]
        for group in groups:
            _plan(group, folder)
        return [*stopped, *groups, *([job] for job in failed)]


class _Runs:
    """Groups of runs as Ray's workload (see :class:`flsel.execution.on_ray.dispatcher.Workload`)."""

    def __init__(self, groups: Sequence[Sequence[Job]], folder: Path, listener: Listener) -> None:
        self._folder, self._listener = folder, listener
        self._groups = list[list[Job]]()
        self._waiting = [self._number(group) for group in groups]
        self._ended = set[Job]()
        self._rounds = dict[int, int]()
        self._failed = {job for group in groups for job in group if job.outcome.status == "failed"}
        self.left = sum(map(len, groups))
        self.refused = ""

    def next(self) -> tuple[int, Report] | None:
        return self._sent(self._waiting.pop(0)) if self._waiting else None

    def name(self, number: int) -> str:
        first, *others = self._groups[number]
        return f"{first.folder} and {len(others)} more" if others else str(first.folder)

    def folder(self, number: int) -> Path:
        return self._groups[number][0].folder

    def stops(self, number: int, report: Report) -> bool:
        return False

    def reported(self, number: int, settings: Report, report: Report) -> None:
        group, taken = self._groups[number], report["taken"]
        if rest := group[taken:]:
            del group[taken:]
            _plan(rest, self._folder)
            self._waiting.insert(0, self._number(rest))
        before = self._rounds.get(number, int(report["began"]))
        self._rounds[number] = max(before, int(report["rounds"]))
        self._listener.advanced(self._rounds[number] - before)
        for at in report["ended"]:
            self._end(group[at])
        self.refused = self.refused or report["refused"]

    def again(self, number: int, settings: Report, *, smaller: bool) -> list[tuple[int, Report]]:
        left = self._unfinished(number)
        if len(left) < 1 + smaller:
            return []
        self._groups[number] = [] if smaller else left
        return [self._sent(self._number([job])) for job in left] if smaller else [self._sent(number)]

    def ended(self, number: int, report: Report, died: str | None) -> None:
        for job in self._unfinished(number):
            if died is not None:
                job.folder.mkdir(parents=True, exist_ok=True)
                write_failure(job.folder, Outcome("failed", died))
            self._end(job)

    def _unfinished(self, number: int) -> list[Job]:
        """Return the jobs of a group that have not ended; a process that died may have told of none."""
        for job in self._groups[number]:
            if job not in self._failed and job.outcome.status in ("complete", "diverged", "failed"):
                self._end(job)
        return [job for job in self._groups[number] if job not in self._ended]

    def _end(self, job: Job) -> None:
        if job not in self._ended:
            self._ended.add(job)
            self.left -= 1
            self._listener.ended(job)

    def _number(self, group: Sequence[Job]) -> int:
        self._groups.append(list(group))
        return len(self._groups) - 1

    def _sent(self, number: int) -> tuple[int, Report]:
        group = self._groups[number]
        plain = [
            {
                "folder": str(job.folder.resolve()),
                "tracked": job.tracked,
                "labelled": job.labelled,
                "config": job.config.to_dict(),
            }
            for job in group
        ]
        return number, {"folder": str(self._folder.resolve()), "jobs": plain}


class ReportingRuns:
    """Runs in a process of Ray's (see :class:`flsel.execution.on_ray.actor.ReportingJob`).

    Those that cannot share a stack with the first are left to others.

    Args:
        number: The group's number.
        settings: The group as :class:`OnRay` sends it.
        source: The dataset, if all jobs have the same.
    """

    def __init__(self, number: int, settings: dict[str, Any], source: Source | None) -> None:
        self._sources, self._source = Sources(), source
        self._jobs = [_job(sent) for sent in settings["jobs"]]
        self._ended = list[int]()
        folder = Path(settings["folder"])
        begun(folder, self._jobs)  # all go back to the round that is recorded
        self._runs = next(stacks(self._jobs, self._session, self._note_end))
        self._record = StackRounds(folder, [run.folder for run in self._runs])
        self._stack = Stack(self._runs, saved=self._record.keep)
        # A report takes Ray's time, so that a run makes no more than fifty.
        config = self._jobs[0].config
        self._every = max(config.output.checkpoint_every, math.ceil(config.rounds / _REPORTS))
        self._began: int | None = None

    def advance(self) -> Report:
        """Execute up to the next report, which comes with a checkpoint.

        Returns:
            ``taken``, how many of the jobs this process executes; ``ended``, the numbers of those that have
            ended since the last report; ``rounds`` that all have; ``began``, those that they had when this
            process began; ``round``, that of the runs; ``done``, whether all have ended; ``refused``, why
            nothing can be written, or nothing.
        """
        refused = ""
        try:
            if self._began is None:
                self._stack.open()
                self._began = self._rounds
            self._stack.execute(until=(self._round // self._every + 1) * self._every)
        except UserError as error:  # not a run's: the record of its failure cannot be written, say
            self.close()
            refused = str(error)
        self._die_of_lack()
        done = bool(refused) or not self._stack.active
        if done and not refused:
            self._record.clear()
        ended, self._ended = self._ended, []
        return {
            "taken": len(self._runs),
            "ended": ended,
            "rounds": self._rounds,
            "began": self._began or 0,
            "round": self._round,
            "done": done,
            "refused": refused,
        }

    def _die_of_lack(self) -> None:
        """Raise what says that memory was lacking, which is no run's fault: another process may have it."""
        lacking = [run for run in self._runs if out_of_memory(run.error)]
        for run in lacking:
            (run.folder / FAILURE).unlink(missing_ok=True)
        for run in lacking[:1]:
            assert run.error is not None
            note_death(self._jobs[0].folder, out_of_memory(run.error) or run.error)
            raise run.error

    def close(self) -> None:
        """Let others have the runs' folders."""
        self._stack.close()

    @property
    def _rounds(self) -> int:
        return sum(run.round for run in self._runs if run.opened)

    @property
    def _round(self) -> int:
        return min((run.round for run in self._stack.active if run.opened), default=0)

    def _note_end(self, job: Job) -> None:
        self._ended.append(self._jobs.index(job))

    def _session(self, job: Job) -> Session:
        job.folder.mkdir(parents=True, exist_ok=True)
        return job.session(self._source or self._sources.get(job.config))


def _plan(group: Sequence[Job], folder: Path) -> None:
    """Let a resume cut the same groups."""
    StackRounds(folder, [job.folder for job in group]).plan()


def _job(sent: dict[str, Any]) -> Job:
    config = RunConfig.from_dict(sent["config"])
    return Job(config, Path(sent["folder"]), tracked=sent["tracked"], labelled=sent["labelled"])
