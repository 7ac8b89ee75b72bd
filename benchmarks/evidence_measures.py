"""What is read off a finished run: one number for a table."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAST_EVALUATIONS = 10
WINDOW = 15


@dataclass(frozen=True)
class Measure:
    """What a table shows.

    Attributes:
        caption: What the numbers are.
        of: Number of a finished run's folder; None if the run did not get there.
        digits: Decimals shown.
        paper: The paper's number by (row, column), as printed there.
        baseline: Row whose number of the same seed is subtracted, or None.
    """

    caption: str
    of: Callable[[Path], float | None]
    digits: int
    paper: dict[tuple[str, str], str] = field(default_factory=dict)
    baseline: str | None = None


def evaluations(run: Path) -> list[dict[str, float]]:
    """Return the rows of a run's ``metrics.csv``."""
    with open(run / "metrics.csv", newline="") as stream:
        return [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(stream)]


def rounds_to_target(run: Path) -> float | None:
    """Communication rounds to the first evaluation at the target accuracy, None if it was not reached."""
    reached: float | None = _summary(run)["rounds_to_target"]
    return reached


def rounds_to_stay(run: Path) -> float | None:
    """Rounds until the mean of the last 15 evaluations is at the target, None if it never was."""
    rows, target = evaluations(run), _summary(run)["target"]
    for end in range(WINDOW, len(rows) + 1):
        if statistics.fmean(row["test/accuracy"] for row in rows[end - WINDOW : end]) >= target:
            return rows[end - 1]["round"]
    return None


def best_loss(run: Path) -> float:
    """Smallest test loss over all evaluations."""
    return float(_summary(run)["best"]["test/loss"])


def last_accuracy(run: Path) -> float:
    """Mean test accuracy of the last ten evaluations, in per cent."""
    return accuracy_until(run, None)


def accuracy_until(run: Path, round: int | None) -> float:
    """Mean test accuracy in per cent of the last ten evaluations up to ``round``; None is the run's end."""
    rows = [row["test/accuracy"] for row in evaluations(run) if round is None or row["round"] <= round]
    return 100 * statistics.fmean(rows[-LAST_EVALUATIONS:])


def mean_of(run: Path, column: str, first: int, last: int) -> float:
    """Mean of a column of ``metrics.csv`` over the evaluations after rounds ``first`` to ``last``."""
    return statistics.fmean(row[column] for row in evaluations(run) if first <= row["round"] <= last)


def share_of(run: Path, clients: range, first: int, last: int) -> float:
    """Share in per cent of the trainings of rounds ``first`` to ``last``, from 1 on, that ``clients`` had."""
    with open(run / "rounds.jsonl") as stream:
        plans = [json.loads(line)["plan"] for line in stream][first - 1 : last]
    visits = [client for plan in plans for path in plan for client in path]
    return 100 * statistics.fmean(client in clients for client in visits)


def _summary(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary
