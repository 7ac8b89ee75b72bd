"""A job: settings, the folder of their run, and what became of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from flsel.config import RunConfig
from flsel.data.population import Source
from flsel.errors import DivergedError, UserError, raised_at
from flsel.files import write_atomic
from flsel.runner.build import WorkerPool, build
from flsel.runner.session import Session

FAILURE = "failure.json"
LABELS = "labels.csv"
Status = Literal["missing", "unfinished", "complete", "diverged", "failed"]


class Outcome(NamedTuple):
    """What became of a job.

    Attributes:
        status: ``missing`` (it waits), ``unfinished`` (it is executed, or was stopped), ``complete``,
            ``diverged`` or ``failed``.
        reason: Why it diverged or failed.
    """

    status: Status
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Job:
    """A run to execute.

    Attributes:
        config: Its settings.
        folder: Its folder, created if it is missing.
        tracked: Whether the trackers that the settings name follow it.
        labelled: Whether its folder keeps how many examples of which label each client has.
    """

    config: RunConfig
    folder: Path
    tracked: bool = True
    labelled: bool = False

    @property
    def outcome(self) -> Outcome:
        """Its outcome, read from its folder.

        Raises:
            UserError: If the record of its failure is damaged.
        """
        if (self.folder / "summary.json").is_file():
            return Outcome("complete")
        recorded = read_failure(self.folder)
        return recorded or Outcome("unfinished" if (self.folder / "config.yaml").is_file() else "missing")

    def session(self, source: Source | None = None, workers: WorkerPool | None = None) -> Session:
        """Build the session of its run.

        Args:
            source: The dataset; None loads it.
            workers: The processes that ``local.workers`` counts; None where there are none but this one.

        Raises:
            UserError: If a setting is wrong.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        built = build(self.config, source, workers=workers)
        made = Session(self.config, self.folder, built, tracked=self.tracked, pictured=False)
        population = built.data.population
        if self.labelled and not population.has_large_table:
            write_labels(self.folder, population.label_counts().tolist())
        return made


def outcome_of(error: Exception) -> Outcome:
    """Return what an error makes of a job: the same for every way to execute it."""
    if isinstance(error, DivergedError):
        return Outcome("diverged", str(error))
    # The selector or the model may be the user's own, and raise anything.
    return Outcome("failed", str(error) if isinstance(error, UserError) else raised_at(error))


def write_labels(folder: Path, labels: list[list[int]]) -> None:
    """Keep how many examples of which label each client has."""
    write_atomic(folder / LABELS, "".join(",".join(map(str, row)) + "\n" for row in labels))


def write_failure(folder: Path, outcome: Outcome) -> None:
    """Record in a run's folder why the run diverged or failed."""
    write_atomic(folder / FAILURE, json.dumps([outcome.status, outcome.reason]) + "\n")


def read_failure(folder: Path) -> Outcome | None:
    """Return why the run in a folder diverged or failed; None if it did neither.

    Raises:
        UserError: If the record is damaged.
    """
    file = folder / FAILURE
    if not file.is_file():
        return None
    try:
        match json.loads(file.read_text(encoding="utf-8")):
            case ["diverged" | "failed" as status, str(reason)]:
                return Outcome(status, reason)
    except (ValueError, RecursionError):
        pass
    raise UserError(f"{file} is damaged: remove it, then resume the run.")
