"""Runs as they lie in their folders, whole or not: what was measured, or why there is nothing to measure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flsel.config.layers import read_yaml
from flsel.errors import UserError
from flsel.files import write_atomic
from flsel.runner.record import JsonLines, MetricsCsv

LABELS = "labels.csv"
FAILURE = "failure.json"
Status = Literal["complete", "missing", "unfinished", "diverged", "failed", "excluded"]
# Seconds that a deployment would spend too; measuring is the simulation's.
_SPENT = ("seconds/select", "seconds/train", "seconds/aggregate")


@dataclass(frozen=True)
class Run:
    """One run of a comparison.

    Attributes:
        variant: What is compared.
        setting: Where.
        seed: Its seed.
        folder: Its folder.
        status: ``complete``, or what became of it.
        reason: Why it is not complete, in words.
        settings: Its config as plain values.
        summary: Its ``summary.json``; empty unless it is complete.
    """

    variant: str
    setting: str
    seed: int
    folder: Path
    status: Status
    reason: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Evaluations by name, each ``[E]``, and the costs up to each of them: see :func:`costs`."""
        rows = MetricsCsv(self.folder / "metrics.csv").rows()
        columns = {name: np.array([row[name] for row in rows], dtype=float) for name in (rows or [{}])[0]}
        return columns | costs(columns)

    @cached_property
    def cohorts(self) -> list[tuple[int, list[int]]]:
        """First communication round of every step, and the clients that took part in it."""
        rows = JsonLines(self.folder / "rounds.jsonl").rows()
        return [
            (int(row["round"]), [client for path in row["plan"] for client in path if client >= 0])
            for row in rows
        ]

    @cached_property
    def availability(self) -> list[tuple[int, int]]:
        """First communication round of every step, and how many clients could be reached in it."""
        rows = JsonLines(self.folder / "rounds.jsonl").rows()
        return [(int(row["round"]), int(row["available"])) for row in rows if "available" in row]

    @cached_property
    def labels(self) -> np.ndarray | None:
        """Examples per client and label, int64 ``[N, C]``; None where the run did not keep them."""
        file = self.folder / LABELS
        return np.loadtxt(file, delimiter=",", dtype=np.int64, ndmin=2) if file.is_file() else None

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each client took part, int64 ``[N]``."""
        taken = [client for _, cohort in self.cohorts for client in cohort]
        return np.bincount(np.array(taken, dtype=np.int64), minlength=self._clients)

    @property
    def _clients(self) -> int:
        stated = self.summary.get("clients") or self.settings.get("clients") or 0
        return int(stated) if self.labels is None else len(self.labels)


def costs(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what was spent up to each evaluation, by name.

    Args:
        columns: Those of ``metrics.csv``.

    Returns:
        ``rounds``, ``models`` (sent down), ``bytes`` (both ways), ``passes`` (forward passes over a client's
        data) and ``seconds`` (selecting, training, aggregating), as far as the columns have them.
    """
    found: dict[str, np.ndarray] = {}
    if "round" in columns:
        found["rounds"] = columns["round"]
    if "ledger/models_down" in columns:
        found["models"] = columns["ledger/models_down"]
    if "ledger/passes" in columns:
        found["passes"] = columns["ledger/passes"]
    if {"ledger/bytes_down", "ledger/bytes_up"} <= columns.keys():
        found["bytes"] = columns["ledger/bytes_down"] + columns["ledger/bytes_up"]
    if set(_SPENT) <= columns.keys():
        found["seconds"] = np.cumsum(sum(columns[name] for name in _SPENT))
    return found


def read_run(folder: Path, *, variant: str = "", setting: str = "", seed: int | None = None) -> Run:
    """Read the folder of a run.

    Args:
        folder: The folder; it need not exist.
        variant: What is compared.
        setting: Where.
        seed: The run's seed; None takes that of its config.

    Raises:
        UserError: If a file in it is damaged.
    """
    config, summary = folder / "config.yaml", folder / "summary.json"
    settings: Mapping[str, Any] = read_yaml(config) if config.is_file() else {}
    seed = int(settings.get("seed", 0)) if seed is None else seed
    if not config.is_file():
        return Run(variant, setting, seed, folder, "missing", "not played yet")
    failure = folder / FAILURE
    if summary.is_file():
        return _complete(Run(variant, setting, seed, folder, "complete", "", settings, _json(summary)))
    if failure.is_file():
        found = _json(failure)
        return Run(variant, setting, seed, folder, found["status"], found["reason"], settings)
    rows = MetricsCsv(folder / "metrics.csv").rows()
    reached = int(rows[-1]["round"]) if rows else 0
    reason = f"stopped at round {reached} of {settings.get('rounds', '?')}"
    return Run(variant, setting, seed, folder, "unfinished", reason, settings)


def write_labels(folder: Path, labels: np.ndarray) -> None:
    """Keep how many examples of which label each client has, ``[N, C]``."""
    lines = (",".join(map(str, row)) for row in labels.tolist())
    write_atomic(folder / LABELS, "\n".join(lines) + "\n")


def write_failure(folder: Path, status: Status, reason: str) -> None:
    """Note why a run ended without a result."""
    write_atomic(folder / FAILURE, json.dumps({"status": status, "reason": reason}, indent=2) + "\n")


def _complete(run: Run) -> Run:
    """Tell a run that ended with numbers from one that ended with NaN."""
    final = run.summary.get("final")
    if not isinstance(final, Mapping):
        raise UserError(
            f"{run.folder / 'summary.json'} is not the summary of a run; play the run again, or leave it out."
        )
    loss, accuracy = run.columns.get("test/loss"), run.columns.get("test/accuracy")
    if loss is None or accuracy is None or len(loss) == 0:
        raise UserError(
            f"{run.folder / 'metrics.csv'} has no test accuracy: it is not of this version of flsel."
        )
    if not np.isfinite(loss[-1]):
        return replace(run, status="diverged", reason="the test loss is not finite")
    return run


def _json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        loaded = None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} is damaged: it is not JSON; play the run again, or leave it out.")
    return loaded


def complete(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that have a result."""
    return [run for run in runs if run.status == "complete"]
