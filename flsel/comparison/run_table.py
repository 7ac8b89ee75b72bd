"""Runs as they lie in their folders, whole or not: what was measured, or why there is nothing to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flsel.errors import UserError
from flsel.execution.job import LABELS, read_failure
from flsel.metrics import SCORE, Score
from flsel.runner.cost_axes import costs
from flsel.runner.result import Result
from flsel.runner.result_files import RecordedRound, read_settings
from flsel.runner.run_log import MetricsCsv

Status = Literal["complete", "missing", "unfinished", "diverged", "failed", "excluded"]


@dataclass(frozen=True)
class Run:
    """One run of a comparison.

    Attributes:
        variant: What is compared.
        scenario: Where.
        seed: Its seed.
        folder: Its folder.
        status: ``complete``, or what became of it.
        reason: Why it is not complete, in words.
        settings: Its config as plain values.
        result: What it did and measured, if it is finished.
    """

    variant: str
    scenario: str
    seed: int
    folder: Path
    status: Status
    reason: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    result: Result | None = None

    @property
    def summary(self) -> Mapping[str, Any]:
        """Its ``summary.json``; empty unless it is finished."""
        return {} if self.result is None else self.result.summary

    @property
    def score(self) -> Score:
        """What it is judged by; test accuracy of a run that is not finished."""
        return SCORE if self.result is None else self.result.score

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Evaluations by name, each ``[E]``, and what was spent up to each of them."""
        columns = {} if self.result is None else self.result.history
        return columns | costs(columns)

    @property
    def rounds(self) -> Sequence[RecordedRound]:
        """Its steps: the clients that trained in each, and its cost."""
        return () if self.result is None else self.result.rounds

    @property
    def counts(self) -> np.ndarray:
        """How often each client took part, int64 ``[N]``."""
        return np.zeros(0, dtype=np.int64) if self.result is None else self.result.counts

    @cached_property
    def labels(self) -> np.ndarray | None:
        """Examples per client and label, int64 ``[N, C]``; None where the run did not keep them."""
        file = self.folder / LABELS
        if not file.is_file():
            return None
        try:
            rows = [[int(count) for count in line.split(",")] for line in file.read_text().splitlines()]
            found = np.array(rows, dtype=np.int64)
        except (ValueError, OverflowError):
            found = np.zeros(0, dtype=np.int64)
        if found.ndim != 2 or found.min() < 0 or (self.result is not None and len(found) != len(self.counts)):
            raise UserError(f"{file} is damaged: it must hold a line of counts for each client; remove it.")
        return found


def read_run(folder: Path, *, variant: str = "", scenario: str = "", seed: int | None = None) -> Run:
    """Read the folder of a run.

    Args:
        folder: The folder; it need not exist.
        variant: What is compared.
        scenario: Where.
        seed: The run's seed; None takes that of its config.

    Raises:
        UserError: If a file in it is damaged or of another version.
    """
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if there.exists() and not there.is_dir():
        raise UserError(f"{there} is a file where a folder of runs belongs.")
    config = folder / "config.yaml"
    if not config.is_file():
        failure = read_failure(folder)
        status, reason = failure or ("missing", "not executed yet")
        return Run(variant, scenario, seed or 0, folder, status, reason)
    result = Result.load(folder) if (folder / "summary.json").is_file() else None
    settings = read_settings(config) if result is None else result.settings
    run = Run(variant, scenario, settings["seed"], folder, "unfinished", settings=settings)
    if result is not None:
        return _finished(replace(run, status="complete", result=result))
    if (failure := read_failure(folder)) is not None:
        return replace(run, status=failure.status, reason=failure.reason)
    rows = MetricsCsv(folder / "metrics.csv").rows()
    reached = int(rows[-1]["round"]) if rows else 0
    return replace(run, reason=f"stopped at round {reached} of {settings.get('rounds', '?')}")


def _finished(run: Run) -> Run:
    """Tell a run that ended with numbers from one that ended with NaN."""
    columns = run.columns
    if run.result is not None:
        # Reports read these later: damage is said now, before anything is written.
        _ = run.labels, run.result.diagnostics
    if run.score.column not in columns:
        raise UserError(
            f"{run.folder / 'metrics.csv'} has no {run.score.words}, so there is nothing to compare."
        )
    for column, words in (("test/loss", "test loss"), (run.score.column, run.score.words)):
        if column in columns and not np.isfinite(columns[column][-1]):
            return replace(run, status="diverged", reason=f"the {words} is not finite")
    return run


def mark_diverged(run: Run, last: int) -> Run:
    """Mark a run as diverged whose score is not finite in one of its last evaluations."""
    if run.status != "complete" or np.isfinite(run.columns[run.score.column][-last:]).all():
        return run
    return replace(
        run, status="diverged", reason=f"the {run.score.words} is not finite in the last {last} evaluations"
    )


def complete(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that have a result."""
    return [run for run in runs if run.status == "complete"]


def common_score(runs: Sequence[Run]) -> Score:
    """Return what all complete runs are judged by; test accuracy where there are none.

    Raises:
        UserError: If they are judged by several scores.
    """
    found = {run.score: run for run in complete(runs)}
    check_one_score({score: str(run.folder) for score, run in found.items()})
    return next(iter(found), SCORE)


def check_one_score(found: Mapping[Score, str]) -> None:
    """Refuse runs that are judged by several scores.

    Raises:
        UserError: If there are several.
    """
    if len(found) > 1:
        ways = {"max": "higher", "min": "lower"}
        listed = " and ".join(
            f"{who} by {score.words} ({ways[score.better]} is better)" for score, who in found.items()
        )
        raise UserError(f"runs must be judged by one score to be compared, got {listed}.")
