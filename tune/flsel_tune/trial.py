"""One trial of a sweep: runs under several seeds in lockstep, each a folder as ``flsel train`` writes it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flsel.config.describe import describe
from flsel.config.parser import parse_settings
from flsel.data.population import Source
from flsel.errors import DivergedError, UserError, machine_failed, raised_at
from flsel.files import write_atomic
from flsel.runner.session import Session
from flsel_tune.metric import Metric

if TYPE_CHECKING:  # a trial's process does without Optuna
    from flsel_tune.space import Settings

_NOTE = "out-of-memory.txt"
_CPU_ALLOCATOR = "DefaultCPUAllocator"  # What torch says of memory on the CPU, in a plain RuntimeError.

Plain = dict[str, Any]
Report = dict[str, Any]


@dataclass(frozen=True)
class SweepJob:
    """What all trials of a sweep have in common; plain values, so that it can be sent to other machines.

    Attributes:
        config: The run's config as plain values.
        seeds: Seeds under which every trial runs.
        metrics: What is optimised.
        rounds: Communication rounds of a run (T).
        report_every: Communication rounds between reports.
        folder: Folder of the sweep, absolute.
    """

    config: Plain
    seeds: tuple[int, ...]
    metrics: tuple[Metric, ...]
    rounds: int
    report_every: int
    folder: str

    def trial_folder(self, number: int) -> Path:
        """Return the folder of a trial."""
        return Path(self.folder) / "trials" / f"{number:04d}"

    def run_config(self, settings: Mapping[str, Any], seed: int) -> Plain:
        """Return the config of a trial's run under a seed, as plain values that ``flsel train`` reads.

        Raises:
            UserError: If the settings do not fit.
        """
        return describe(parse_settings(self.config, {**settings, "seed": seed}))

    def objective(self, index: int) -> str:
        """Return the name under which reports carry a metric's value."""
        return "objective" if len(self.metrics) == 1 else f"objective_{index}"


class Trial:
    """Settings to try: one run for each seed, all at the same round whenever a report is made.

    A trial that finds runs in its folder goes on from their checkpoints. It first repeats the report of the
    round that all of them had reached, since whoever asks may not have received it.

    Args:
        job: What all trials have in common.
        number: Number of the trial in the study.
        settings: What it changes in the config, by dotted key.
        source: The dataset, if it is shared; otherwise each run loads it.

    Raises:
        UserError: If the settings do not fit.
    """

    def __init__(self, job: SweepJob, number: int, settings: Settings, source: Source | None = None) -> None:
        self.job = job
        self.folder = job.trial_folder(number)
        self._sessions = [self._session(settings, seed, source) for seed in job.seeds]
        self._open()
        # A run that a callback has ended waits for the others.
        reached = min(job.rounds if session.over else session.server.round for session in self._sessions)
        self._next = max(job.report_every, reached // job.report_every * job.report_every)
        if reached >= job.rounds:
            self._next = job.rounds
        self._rows: list[list[dict[str, float]]] = [[] for _ in self._sessions]
        self._shown = [0] * len(self._sessions)

    def close(self) -> None:
        """Let others have the runs' folders; nothing can be played afterwards."""
        for session in self._sessions:
            session.close()

    def advance(self) -> Report:
        """Play up to the next report.

        Returns:
            ``round``; the metrics' values, averaged over the seeds; the first one's standard deviation,
            ``spread``, and its value for each of the ``seeds``; ``rows``, for each of them the evaluations
            since the last report; ``finished``, whether all rounds are played, or callbacks ended all runs.

        Raises:
            UserError: If a run cannot go on; a DivergedError if a round had nothing to aggregate.
        """
        point = min(self._next, self.job.rounds)
        for session in self._sessions:
            while session.server.round < point and not session.over:
                session.step()
            session.save()
        self._next = point + self.job.report_every
        furthest = max(session.server.round for session in self._sessions)
        ended = furthest <= point and all(session.over for session in self._sessions)
        finished = ended or point >= self.job.rounds
        for session in self._sessions:
            if finished and not session.complete:
                session.end()
        return self._report(min(furthest, point) if finished else point, finished)

    @property
    def round(self) -> int:
        """Communication rounds that all runs have played."""
        return min(session.server.round for session in self._sessions)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds; all runs' clocks go on while one of them plays."""
        return max(session.seconds for session in self._sessions)

    def _open(self) -> None:
        try:
            for session in self._sessions:
                session.open()
        except BaseException:
            self.close()
            raise

    def _report(self, point: int, finished: bool) -> Report:
        for known, session in zip(self._rows, self._sessions, strict=True):
            known += session.rows(len(known))
        histories = [list(_until(rows, point)) for rows in self._rows]
        values = [[metric.value(rows, self.job.rounds) for rows in histories] for metric in self.job.metrics]
        rows = [history[shown:] for history, shown in zip(histories, self._shown, strict=True)]
        self._shown = [len(history) for history in histories]
        means = {self.job.objective(n): statistics.fmean(found) for n, found in enumerate(values)}
        finite = all(map(math.isfinite, means.values()))
        return {
            "round": point,
            **means,
            "spread": statistics.stdev(values[0]) if len(values[0]) > 1 and finite else 0.0,
            "seeds": values[0],
            "rows": rows,
            "finished": finished,
            "seconds": self.seconds,
        }

    def _session(self, settings: Settings, seed: int, source: Source | None) -> Session:
        folder = self.folder / f"seed{seed}"
        place = {"output.dir": str(self.folder), "output.name": folder.name}
        config = parse_settings(self.job.config, {**settings, **place, "seed": seed})
        return Session.at(config, folder, source)


def build_trial(job: SweepJob, number: int, settings: Settings, source: Source | None) -> Trial | Report:
    """Build a trial with the arguments of :class:`Trial`, or report why that cannot be done."""
    try:
        return Trial(job, number, settings, source)
    except Exception as error:  # the model or the selector may be the user's own
        if lack := _lack(error):
            _note(job.trial_folder(number), lack)
            raise
        return failure(job, error)


def attempt(trial: Trial) -> Report:
    """Advance a trial; what another process would not mend is reported instead of raised.

    Returns:
        The report, with ``status`` ``running``, ``complete``, ``diverged`` or ``failed``, ``error``, and
        ``done`` for all but the first; values of a trial without a result are NaN.
    """
    try:
        report = trial.advance()
    except Exception as error:  # the run may be the user's own code
        if lack := _lack(error):
            _note(trial.folder, lack)
            raise
        return failure(trial.job, error) | {"round": trial.round, "seconds": trial.seconds}
    values = [report[trial.job.objective(n)] for n in range(len(trial.job.metrics))]
    if not all(map(math.isfinite, values)):
        return {**report, "status": "diverged", "error": "the metric is not finite", "done": True}
    status = "complete" if report["finished"] else "running"
    return {**report, "status": status, "error": "", "done": report["finished"]}


def failure(job: SweepJob, error: Exception) -> Report:
    """Report a trial that cannot go on."""
    status = "diverged" if isinstance(error, DivergedError) else "failed"
    why = str(error) if isinstance(error, UserError) else raised_at(error)
    values = {job.objective(n): math.nan for n in range(len(job.metrics))}
    return {
        "round": 0, **values, "spread": math.nan, "seeds": [], "rows": [[] for _ in job.seeds],
        "finished": False, "seconds": 0.0, "status": status, "error": why, "done": True,
        "machine": machine_failed(error),
    }  # fmt: skip


def cause_of_death(folder: Path) -> str:
    """Say why a trial's process died, as far as it could say so itself.

    Args:
        folder: The trial's folder.
    """
    note = folder / _NOTE
    said = note.read_text(encoding="utf-8") if note.exists() else "its process died, perhaps out of memory"
    return f"{said} (more often than `retries` allows)"


def _lack(error: BaseException | None) -> BaseException | None:
    """Return the error that says that memory was lacking, which another trial may have taken, or None."""
    while error is not None:
        refused = isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)
        if refused or isinstance(error, MemoryError | torch.OutOfMemoryError):
            return error
        error = error.__cause__  # the sentence that it was put into hides it
    return None


def _note(folder: Path, error: BaseException) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(
        folder / _NOTE,
        f"out of memory: {raised_at(error)}; lower max_concurrent, local.chunk or local.batch_size",
    )


def _until(rows: list[dict[str, float]], point: int) -> Iterator[dict[str, float]]:
    """Yield evaluations up to the first at or after a round; a step may go beyond it."""
    for row in rows:
        yield row
        if row["round"] >= point:
            return
