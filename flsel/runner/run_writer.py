"""What a run writes while it runs: metrics, plans, diagnostics, and checkpoints that count on them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from flsel.engine.server import RoundRecord
from flsel.errors import UserError, short
from flsel.files import write_atomic
from flsel.metrics import CLIENT_LOG, METRICS, SCORE, Metric, Score
from flsel.runner.checkpoint import Checkpoint, Checkpoints
from flsel.runner.diagnostics import FILE as DIAGNOSTICS
from flsel.runner.diagnostics import Recorder
from flsel.runner.run_files import GrowingFiles
from flsel.runner.saved_settings import read_config

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
        self._files = GrowingFiles(folder)
        self.metrics = self._files.table("metrics.csv")
        self.best: dict[str, float] = {}
        self.diagnostics = Recorder(self._files.objects(DIAGNOSTICS), clients, described["rounds"])
        self.summary = folder / "summary.json"
        self._config = folder / "config.yaml"
        self._plans = self._files.objects("rounds.jsonl")
        # The number of rounds may change: check_extension() says when.
        relevant = {key: value for key, value in described.items() if key != "rounds"}
        self._checkpoints = Checkpoints(folder, relevant)

    @property
    def last(self) -> Path:
        """The last checkpoint."""
        return self._checkpoints.last

    def write_settings(self, described: Mapping[str, Any]) -> None:
        """Write ``config.yaml``, unless it says the same already: its words may be the user's own."""
        try:
            known = read_config(self._config.parent).to_dict()
        except UserError:  # none yet
            known = {}
        if known != described:
            write_atomic(self._config, yaml.safe_dump(described, sort_keys=False))

    def evaluated(self, round: int, metrics: Mapping[str, float], score: Score = SCORE) -> None:
        """Write down what was measured after so many rounds.

        Args:
            round: The rounds.
            metrics: What was measured.
            score: What the run is judged by, whose best value is kept too, on each held-out set.

        Raises:
            UserError: If a callback adds other metrics than to the evaluation before.
        """
        before = [column for column in self.metrics.columns() if column != "round"]
        if before:  # an older flsel may have begun the run without what clients log
            metrics = {n: v for n, v in metrics.items() if n in before or not n.startswith(CLIENT_LOG)}
        if before and set(before) != set(metrics):
            one, other = (
                ", ".join(c for c in names if c not in METRICS) or "none" for names in (before, metrics)
            )
            raise UserError(
                "on_evaluation of a callback must add the same metrics to every evaluation of a run, got "
                f"{short(other)} instead of {short(one)}."
            )
        self.metrics.append({"round": round, **metrics})
        for column, value in metrics.items():
            # A callback's have no direction.
            judged = column.partition("/")[2] == score.name
            metric = METRICS.get(column, Metric(column, "", column, score.better) if judged else None)
            if metric is not None and metric.held_out:
                best = self.best.setdefault(column, metric.worst)
                self.best[column] = value if metric.beats(value, best) else best

    def write_round(self, record: RoundRecord) -> None:
        """Record the clients that trained in a round, and warn of dropped updates."""
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
                **({} if outcome.time is None else {"time": outcome.time._asdict()}),
                **({} if outcome.staleness is None else {"staleness": outcome.staleness}),
            }
        )

    def save(self, **state: Any) -> None:
        """Write a checkpoint.

        Args:
            state: What it holds besides the best values and how far the files have grown.
        """
        checkpoint = Checkpoint(files=self._files.marks(), best=self.best, **state)
        self._checkpoints.save(checkpoint, self._files.paths)

    def load(self) -> Checkpoint | None:
        """Return the last checkpoint, or None before the first.

        Raises:
            UserError: If it is gone or damaged, or the files do not hold what it counts on.
        """
        state = self._checkpoints.load()
        # The first checkpoint is written before the first round is run.
        if state is None and (self.summary.exists() or next(iter(self._plans.lines), None)):
            raise UserError(
                f"{self.last} is missing, without which the run cannot go on: restore it, or start a new "
                f"run with --config {self._config}."
            )
        self._files.check({} if state is None else state.files)
        if state is not None:
            self.best = dict(state.best)
        return state

    def rewind(self, state: Checkpoint | None) -> None:
        """Cut what will be run again after a checkpoint, or all if there is none."""
        self._files.rewind({} if state is None else state.files)
