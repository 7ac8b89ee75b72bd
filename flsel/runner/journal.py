"""What a run writes while it plays: metrics, plans, diagnostics, and checkpoints that count on them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flsel.engine.server import RoundRecord
from flsel.errors import UserError
from flsel.metrics import METRICS
from flsel.runner.checkpoint import Checkpoint, Checkpoints
from flsel.runner.diagnostics import Recorder
from flsel.runner.record import JsonLines, Mark, MetricsCsv

_LOG = logging.getLogger("flsel")


class Journal:
    """The files of a run that grow with its rounds.

    Args:
        folder: The run's folder.
        described: The settings as plain values.
        clients: N.

    Attributes:
        metrics: ``metrics.csv``.
        best: Best values so far of what is measured on held-out sets, by name.
        diagnostics: ``diagnostics.jsonl``.
        summary: The file that a finished run has, the last to be written.
    """

    def __init__(self, folder: Path, described: Mapping[str, Any], clients: int) -> None:
        self.metrics = MetricsCsv(folder / "metrics.csv")
        self.best: dict[str, float] = {}
        self.diagnostics = Recorder(folder, clients, described["rounds"])
        self.summary = folder / "summary.json"
        self._config = folder / "config.yaml"
        self._plans = JsonLines(folder / "rounds.jsonl")
        # The number of rounds may change: check_extension() says when.
        relevant = {key: value for key, value in described.items() if key != "rounds"}
        self._checkpoints = Checkpoints(folder, relevant)

    @property
    def last(self) -> Path:
        """The last checkpoint."""
        return self._checkpoints.last

    def evaluated(self, round: int, metrics: Mapping[str, float]) -> None:
        """Write down what was measured after so many rounds."""
        self.metrics.append({"round": round, **metrics})
        for column, value in metrics.items():
            metric = METRICS[column]
            if metric.held_out:
                best = self.best.setdefault(column, metric.worst)
                self.best[column] = value if metric.beats(value, best) else best

    def played(self, record: RoundRecord) -> None:
        """Write down who trained in a round, and tell of updates that were dropped."""
        outcome = record.outcome
        if outcome.dropped:
            lost = ", ".join(map(str, outcome.dropped))
            _LOG.warning("round %d: dropped the non-finite updates of clients %s", record.round, lost)
        self._plans.append(
            {
                "round": record.round,
                "plan": outcome.plan.paths,
                "weights": outcome.weights.tolist(),
                "available": outcome.available,
                "dropped": outcome.dropped,
                "ledger": dict(outcome.ledger),
            }
        )

    def save(self, **state: Any) -> None:
        """Write a checkpoint.

        Args:
            state: What it holds besides the best values and how far the files have grown.
        """
        files = self.metrics.lines, self._plans.lines
        metrics, plans = (file.mark() for file in files)
        checkpoint = Checkpoint(metrics=metrics, plans=plans, best=self.best, **state)
        self._checkpoints.save(checkpoint, [file.path for file in files])

    def load(self) -> Checkpoint | None:
        """Return the last checkpoint, or None before the first.

        Raises:
            UserError: If it is gone or damaged, or the files do not hold what it counts on.
        """
        state = self._checkpoints.load()
        # The first checkpoint is written before the first round is played.
        if state is None and (self.summary.exists() or next(iter(self._plans.lines), None)):
            raise UserError(
                f"{self.last} is missing, without which the run cannot go on: restore it, or start a new "
                f"run with --config {self._config}."
            )
        for file, mark in self._marked(state):
            file.check(mark)
        if state is not None:
            self.best = dict(state.best)
        return state

    def rewind(self, state: Checkpoint | None, round: int) -> None:
        """Cut what will be played again, after a round."""
        for file, mark in self._marked(state):
            file.rewind(mark)
        self.diagnostics.rewind(round)

    def _marked(self, state: Checkpoint | None) -> tuple[tuple[Any, Mark], tuple[Any, Mark]]:
        metrics, plans = (Mark(), Mark()) if state is None else (state.metrics, state.plans)
        return (self.metrics.lines, metrics), (self._plans.lines, plans)
