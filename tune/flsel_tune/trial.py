"""One trial of a sweep: runs under several seeds in lockstep, each a folder as ``flsel train`` writes it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flsel.config import RunConfig
from flsel.data.population import Source
from flsel.errors import machine_failed
from flsel.execution.active_run import ActiveRun
from flsel.execution.job import Job, outcome_of
from flsel.execution.on_ray.deaths import note_death, out_of_memory
from flsel.execution.stack import Stack
from flsel_tune.metric import SweepObjective

if TYPE_CHECKING:  # a trial's process does without Optuna
    from flsel_tune.space import Settings

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
    metrics: tuple[SweepObjective, ...]
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
        return RunConfig.from_dict(self.config, {**settings, "seed": seed}).to_dict()

    def objective(self, index: int) -> str:
        """Return the name under which reports carry a metric's value."""
        return "objective" if len(self.metrics) == 1 else f"objective_{index}"


class Trial:
    """Settings to try: one run for each seed, all at the same round whenever a report is made.

    A trial that finds runs in its folder goes on from their checkpoints. It first repeats the report of the
    round that all of them had reached, since the driver may not have received it.

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
        self._runs = [self._run(settings, seed, source) for seed in job.seeds]
        self._stacks = [Stack([run]) for run in self._runs]
        self._open()
        # A run that a callback has ended waits for the others.
        reached = min(job.rounds if run.over else run.round for run in self._runs)
        self._next = max(job.report_every, reached // job.report_every * job.report_every)
        if reached >= job.rounds:
            self._next = job.rounds
        self._rows: list[list[dict[str, float]]] = [[] for _ in self._runs]
        self._shown = [0] * len(self._runs)

    def close(self) -> None:
        """Let others have the runs' folders; nothing can be executed afterwards."""
        for run in self._runs:
            run.close()

    def advance(self) -> Report:
        """Run up to the next report.

        Returns:
            ``round``; the metrics' values, averaged over the seeds; the first one's standard deviation,
            ``spread``, and its value for each of the ``seeds``; ``rows``, for each of them the evaluations
            since the last report; ``finished``, whether all rounds are run, or callbacks ended all runs.

        Raises:
            UserError: If a run cannot go on; a DivergedError if a round had nothing to aggregate.
        """
        point = min(self._next, self.job.rounds)
        for run, stack in zip(self._runs, self._stacks, strict=True):
            stack.execute(until=point)
            _raise(run)
        self._next = point + self.job.report_every
        furthest = max(run.round for run in self._runs)
        ended = furthest <= point and all(run.over for run in self._runs)
        finished = ended or point >= self.job.rounds
        return self._report(min(furthest, point) if finished else point, finished)

    @property
    def round(self) -> int:
        """Communication rounds that all runs have completed."""
        return min(run.round for run in self._runs)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds; the clocks of all runs advance while one of them runs."""
        return max(run.session.seconds for run in self._runs)

    def _open(self) -> None:
        try:
            for run, stack in zip(self._runs, self._stacks, strict=True):
                stack.open()
                _raise(run)
        except BaseException:
            self.close()
            raise

    def _report(self, point: int, finished: bool) -> Report:
        for known, run in zip(self._rows, self._runs, strict=True):
            known += run.session.rows(len(known))
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

    def _run(self, settings: Settings, seed: int, source: Source | None) -> ActiveRun:
        folder = self.folder / f"seed{seed}"
        place = {"output.dir": str(self.folder), "output.name": folder.name}
        config = RunConfig.from_dict(self.job.config, {**settings, **place, "seed": seed})
        job = Job(config, folder, tracked=False)
        run = ActiveRun(folder, lambda: job.session(source))
        _raise(run)
        return run


class ReportingTrial:
    """A trial in a process of Ray's (see :class:`flsel.execution.on_ray.actor.ReportingJob`).

    Args:
        job: As for :class:`Trial`, which the first step builds.
        number: As for :class:`Trial`.
        settings: As for :class:`Trial`.
        source: As for :class:`Trial`.
    """

    def __init__(self, job: SweepJob, number: int, settings: Settings, source: Source | None) -> None:
        self._job, self._number, self._settings, self._source = job, number, settings, source
        self._trial: Trial | None = None

    def advance(self) -> Report:
        """Build the trial or advance it; see :func:`attempt`."""
        if self._trial is None:
            try:
                self._trial = Trial(self._job, self._number, self._settings, self._source)
            except Exception as error:  # the model or the selector may be the user's own
                return _reported(error, self._job, self._job.trial_folder(self._number))
        return attempt(self._trial)

    def close(self) -> None:
        """Let others have the runs' folders."""
        if self._trial is not None:
            self._trial.close()


def attempt(trial: Trial) -> Report:
    """Advance a trial; what another process would not mend is reported instead of raised.

    Returns:
        The report, with ``status`` ``running``, ``complete``, ``diverged`` or ``failed``, ``error``, and
        ``done`` for all but the first; values of a trial without a result are NaN.
    """
    try:
        report = trial.advance()
    except Exception as error:  # the run may be the user's own code
        reached = {"round": trial.round, "seconds": trial.seconds}
        return _reported(error, trial.job, trial.folder) | reached
    values = [report[trial.job.objective(n)] for n in range(len(trial.job.metrics))]
    if not all(map(math.isfinite, values)):
        return {**report, "status": "diverged", "error": "the metric is not finite", "done": True}
    status = "complete" if report["finished"] else "running"
    return {**report, "status": status, "error": "", "done": report["finished"]}


def _reported(error: Exception, job: SweepJob, folder: Path) -> Report:
    """Report an error, but raise one that another process may mend."""
    if lack := out_of_memory(error):
        note_death(folder, lack)
        raise error
    return failure(job, error)


def failure(job: SweepJob, error: Exception) -> Report:
    """Report a trial that cannot continue."""
    status, why = outcome_of(error)
    values = {job.objective(n): math.nan for n in range(len(job.metrics))}
    return {
        "round": 0, **values, "spread": math.nan, "seeds": [], "rows": [[] for _ in job.seeds],
        "finished": False, "seconds": 0.0, "status": status, "error": why, "done": True,
        "machine": machine_failed(error),
    }  # fmt: skip


def _raise(run: ActiveRun) -> None:
    if run.error is not None:
        raise run.error


def _until(rows: list[dict[str, float]], point: int) -> Iterator[dict[str, float]]:
    """Yield evaluations up to the first at or after a round; a step may go beyond it."""
    for row in rows:
        yield row
        if row["round"] >= point:
            return
