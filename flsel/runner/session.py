"""A run in steps: its server, and the files, trackers and callbacks that follow it."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import torch

from flsel.config import RunConfig
from flsel.config.describe import fingerprint
from flsel.engine.server import RoundRecord
from flsel.errors import UserError
from flsel.report.curves import curves_figure
from flsel.report.style import save_figure
from flsel.runner.build import Built
from flsel.runner.checkpoint import load_checkpoint, save_checkpoint
from flsel.runner.record import JsonLines, MetricsCsv, device_name, git_commit, versions, write_summary
from flsel.runner.tracking import Tracker

_LOG = logging.getLogger("flsel")


class Session:
    """One process's part of a run: steps of the server, written to the run's folder.

    :meth:`restore`, :meth:`begin`, then :meth:`step` until the server is finished, then :meth:`end`. What
    drives it - the command line, a trial of a sweep - decides when to save and what to show.

    Args:
        config: The settings.
        described: The same as plain values.
        built: The run's server and what belongs to it.
        folder: The run's folder, which exists.
    """

    def __init__(self, config: RunConfig, described: dict[str, Any], built: Built, folder: Path) -> None:
        self.config = config
        self.described = described
        self.built = built
        self.server = built.server
        self.folder = folder
        self.checkpoint = folder / "checkpoints" / "last.ckpt"
        self.metrics_file = MetricsCsv(folder / "metrics.csv")
        self.tracker = Tracker([])
        self.best: dict[str, float] = {}
        self._rounds_file = JsonLines(folder / "rounds.jsonl")
        self._fingerprint = fingerprint(described)
        self._earlier = 0.0
        self._started = time.perf_counter()

    def restore(self) -> None:
        """Go back to the last checkpoint: state, and files without what will be played again.

        Raises:
            UserError: If the checkpoint is damaged or does not fit the settings.
        """
        if self.checkpoint.exists():
            state = load_checkpoint(self.built.fabric, self.checkpoint, self._fingerprint)
            try:
                self.server.load_state_dict(state["server"])
                self.best, self._earlier = dict(state["best"]), state["wall"]
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise UserError(
                    f"checkpoint {self.checkpoint} does not fit this run ({error}): restore the model, the "
                    "selector or the flsel that wrote it, or start a new run with --config."
                ) from error
        # A row of metrics.csv carries the number of rounds completed, one of rounds.jsonl the round's index.
        evaluated = self.server.round + 1 if self.checkpoint.exists() else 0
        self.metrics_file.truncate(evaluated)
        self._rounds_file.truncate(self.server.round)

    def begin(self) -> None:
        """Measure the initial model, unless that was done, and tell the callbacks that training starts."""
        if self.server.round == 0 and not self.metrics_file.rows():
            self._evaluated(self.server.evaluate(torch.empty(0, dtype=torch.int64)))
            self.save()
        self._call("on_fit_start")
        self._call("on_train_start")

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of all processes that played this run."""
        return self._earlier + time.perf_counter() - self._started

    def step(self) -> RoundRecord:
        """Play one round and write down what happened."""
        self._call("on_train_epoch_start")
        self._call("on_round_start", server=self.server)
        record = self.server.step()
        self._played(record)
        if record.metrics is not None:
            self._evaluated(record.metrics)
        self._call("on_round_end", server=self.server, record=record)
        self._call("on_train_epoch_end")
        return record

    def save(self) -> None:
        """Write the checkpoint that :meth:`restore` goes back to."""
        self._rounds_file.sync()
        self.metrics_file.sync()
        state = {"server": self.server.state_dict(), "best": self.best, "wall": self.seconds}
        self.checkpoint.parent.mkdir(exist_ok=True)
        save_checkpoint(self.built.fabric, self.checkpoint, state, self._fingerprint)

    def end(self) -> dict[str, Any]:
        """Tell the callbacks that training is over, draw the curves, and write and return the summary."""
        self._call("on_train_end")
        rows = self.metrics_file.rows()
        title = f"{self.built.data.name}, {type(self.config.selector).__name__}, seed {self.config.seed}"
        counts = self.server.counts.tolist()
        figure = curves_figure(rows, title=title, target=self.config.evaluation.target, counts=counts)
        save_figure(figure, self.folder / "curves.png")
        # The last file: a run that has it is finished.
        summary = self._summary(rows[-1])
        write_summary(self.folder / "summary.json", summary)
        self.tracker.table("selection/counts", ("client", "count"), list(enumerate(counts)))
        self.tracker.summary({f"best/{name}": value for name, value in self.best.items()})
        return summary

    def _played(self, record: RoundRecord) -> None:
        outcome = record.outcome
        if outcome.dropped:
            _LOG.warning(
                "round %d: dropped the non-finite updates of clients %s",
                record.round, ", ".join(map(str, outcome.dropped)),
            )  # fmt: skip
        self._rounds_file.append(
            {
                "round": record.round,
                "plan": outcome.plan.paths,
                "weights": outcome.weights.tolist(),
                "available": outcome.available,
                "dropped": outcome.dropped,
                "ledger": dict(outcome.ledger),
            }
        )

    def _evaluated(self, metrics: dict[str, float]) -> None:
        self.metrics_file.append({"round": self.server.round, **metrics})
        for name in ("test", "validation"):
            if f"{name}/loss" in metrics:
                low, high = f"{name}/loss", f"{name}/accuracy"
                self.best[low] = min(self.best.get(low, float("inf")), metrics[low])
                self.best[high] = max(self.best.get(high, 0.0), metrics[high])
        self.tracker.log(metrics, self.server.round)
        self._call("on_evaluation", server=self.server, metrics=metrics)
        self._call("on_validation_end")

    def _call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of the callbacks; Lightning's own get the server in the trainer's place."""
        if not self.config.callbacks:
            return
        program = self.built.program
        program.load(self.server.params)
        try:
            self.built.fabric.call(hook, trainer=self.server, pl_module=program.task, **arguments)
        except AttributeError as error:
            if error.obj is not self.server:
                raise
            raise UserError(
                f"callbacks must do without a Lightning Trainer, and one asks for its {error.name} in {hook}."
            ) from error

    def _summary(self, last: dict[str, float]) -> dict[str, Any]:
        device = str(self.built.program.task.device)
        return {
            "name": self.folder.name,
            "rounds": self.server.round,
            "final": {k: v for k, v in last.items() if not k.startswith("seconds/")},
            "best": self.best,
            "target": self.config.evaluation.target,
            "rounds_to_target": self.server.rounds_to_target,
            "dropped_updates": self.server.ledger["dropped_updates"],
            "wall_seconds": self.seconds,
            "device": device,
            "device_name": device_name(device),
            "versions": versions(),
            "git_commit": git_commit(),
        }
