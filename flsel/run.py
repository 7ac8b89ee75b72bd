"""One federated run, from settings to files: a run is a function of its config."""

from __future__ import annotations

import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from flsel.build import Built, build, make_fabric
from flsel.checkpoint import load_checkpoint, save_checkpoint
from flsel.config import RunConfig
from flsel.describe import describe, fingerprint
from flsel.errors import Interrupted, UserError
from flsel.files import new_run_dir, write_atomic
from flsel.interrupt import Interrupt
from flsel.progress import Progress, final_table
from flsel.record import JsonLines, MetricsCsv, device_name, git_commit, versions, write_summary
from flsel.report.curves import curves_figure, save_figure
from flsel.report.partition import partition_figure
from flsel.server import RoundRecord
from flsel.tracking import Tracker, make_loggers

_LOG = logging.getLogger("flsel")


def run(config: RunConfig) -> dict[str, float]:
    """Train a federated model and write what happened to a new folder.

    Args:
        config: The settings; its fields are the schema of the YAML file and of the command line.

    Returns:
        Metrics of the last evaluation, by name.

    Raises:
        UserError: If a setting is wrong, a file cannot be written, or every client of a round diverges.
        Interrupted: If a signal stopped the run; it can be resumed.
    """
    described = describe(config)
    name = config.output.name or default_name(config)
    built = build(config, make_fabric(config))
    folder = new_run_dir(config.output.dir, name)
    try:
        write_atomic(folder / "config.yaml", yaml.safe_dump(described, sort_keys=False))
        (folder / "checkpoints").mkdir()
        return _Session(config, described, built, folder).play()
    except UserError:
        # A run that never got through a round leaves nothing to look at or to go on with.
        if built.server.round == 0:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def resume(config: RunConfig, folder: Path) -> dict[str, float]:
    """Continue a run from its last checkpoint, or from the start if it has none yet.

    Args:
        config: The settings in the folder's ``config.yaml``.
        folder: The run's folder.

    Returns:
        Metrics of the last evaluation, by name; equal to those of a run that was never interrupted.

    Raises:
        UserError: As :func:`run`, or if the checkpoint is damaged or belongs to another config.
    """
    built = build(config, make_fabric(config))
    return _Session(config, describe(config), built, folder).play()


def default_name(config: RunConfig) -> str:
    """Name a run after its dataset, selector and seed."""
    dataset = config.data.name.rpartition(".")[2].lower()
    return f"{dataset}-{type(config.selector).__name__.lower()}-s{config.seed}"


class _Session:
    """One process's part of a run: its files, trackers and progress."""

    def __init__(self, config: RunConfig, described: dict[str, Any], built: Built, folder: Path) -> None:
        self.config = config
        self.described = described
        self.built = built
        self.server = built.server
        self.folder = folder
        self.checkpoint = folder / "checkpoints" / "last.ckpt"
        self.fingerprint = fingerprint(described)
        self.rounds_file = JsonLines(folder / "rounds.jsonl")
        self.metrics_file = MetricsCsv(folder / "metrics.csv")
        self.best: dict[str, float] = {}
        self.wall = 0.0
        self.started = time.perf_counter()

    def play(self) -> dict[str, float]:
        """Play the rounds that are left."""
        self._restore()
        if self.server.finished and (self.folder / "summary.json").exists():
            return self._show_finished()
        tracker = self._open_tracker()
        status = "failed"
        try:
            self._loop(tracker)
            metrics = self._finish(tracker)
            status = "success"
        finally:
            tracker.close(status)
        return metrics

    # --- before -------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Go back to the last checkpoint: state, and files without what will be played again."""
        if self.checkpoint.exists():
            state = load_checkpoint(self.built.fabric, self.checkpoint, self.fingerprint)
            try:
                self.server.load_state_dict(state["server"])
                self.best, self.wall = dict(state["best"]), state["wall"]
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise UserError(
                    f"checkpoint {self.checkpoint} does not fit this run ({error}): restore the model, the "
                    "selector or the flsel that wrote it, or start a new run with --config."
                ) from error
        # A row of metrics.csv carries the number of rounds completed, one of rounds.jsonl the round's index.
        evaluated = self.server.round + 1 if self.checkpoint.exists() else 0
        self.metrics_file.truncate(evaluated)
        self.rounds_file.truncate(self.server.round)

    def _open_tracker(self) -> Tracker:
        config = self.config
        tags = (type(config.selector).__name__, self.built.data.name)
        loggers = make_loggers(
            config.track,
            run_dir=self.folder,
            name=self.folder.name,
            resolved_config=self.described,
            tags=tags,
        )
        self.built.fabric.loggers.extend(loggers)
        tracker = Tracker(loggers)
        picture = self.folder / "partition.png"
        if not picture.exists():
            counts = self.built.server.federation.labels.numpy()
            save_figure(partition_figure(counts, f"{self.built.data.name}: {len(counts)} clients"), picture)
        tracker.image("partition", picture, self.server.round)
        return tracker

    # --- during -------------------------------------------------------------------------------------------

    def _loop(self, tracker: Tracker) -> None:
        server = self.server
        if server.round == 0 and not self.metrics_file.rows():
            self._evaluated(server.evaluate(torch.empty(0, dtype=torch.int64)), tracker)
            self._save()
        self._call("on_fit_start")
        self._call("on_train_start")
        progress = Progress(server.federation.rounds, quiet=self.config.quiet, start=server.round)
        with progress, Interrupt() as interrupt:
            while not server.finished:
                self._call("on_train_epoch_start")
                self._call("on_round_start", server=server)
                record = server.step()
                self._played(record)
                if record.metrics is not None:
                    self._evaluated(record.metrics, tracker)
                self._call("on_round_end", server=server, record=record)
                self._call("on_train_epoch_end")
                progress.update(server.round, record.metrics or {})
                if server.finished or interrupt.requested or self._due(record):
                    self._save()
                if interrupt.requested and not server.finished:
                    raise Interrupted(
                        f"stopped after round {server.round} of {server.federation.rounds}; continue with: "
                        f"flsel train --resume {self.folder}"
                    )
        self._call("on_train_end")

    def _played(self, record: RoundRecord) -> None:
        outcome = record.outcome
        if outcome.dropped:
            _LOG.warning(
                "round %d: dropped the non-finite updates of clients %s",
                record.round, ", ".join(map(str, outcome.dropped)),
            )  # fmt: skip
        self.rounds_file.append(
            {
                "round": record.round,
                "plan": outcome.plan.paths,
                "weights": outcome.weights.tolist(),
                "available": outcome.available,
                "dropped": outcome.dropped,
                "ledger": dict(outcome.ledger),
            }
        )

    def _evaluated(self, metrics: dict[str, float], tracker: Tracker) -> None:
        self.metrics_file.append({"round": self.server.round, **metrics})
        for name in ("test", "validation"):
            if f"{name}/loss" in metrics:
                low, high = f"{name}/loss", f"{name}/accuracy"
                self.best[low] = min(self.best.get(low, float("inf")), metrics[low])
                self.best[high] = max(self.best.get(high, 0.0), metrics[high])
        tracker.log(metrics, self.server.round)
        self._call("on_evaluation", server=self.server, metrics=metrics)
        self._call("on_validation_end")

    def _due(self, record: RoundRecord) -> bool:
        every = self.config.output.checkpoint_every
        return record.completed // every > record.round // every

    def _save(self) -> None:
        self.rounds_file.sync()
        self.metrics_file.sync()
        state = {"server": self.server.state_dict(), "best": self.best, "wall": self._wall()}
        save_checkpoint(self.built.fabric, self.checkpoint, state, self.fingerprint)

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

    def _wall(self) -> float:
        return self.wall + time.perf_counter() - self.started

    # --- after --------------------------------------------------------------------------------------------

    def _finish(self, tracker: Tracker) -> dict[str, float]:
        rows = self.metrics_file.rows()
        last = rows[-1]
        title = f"{self.built.data.name}, {type(self.config.selector).__name__}, seed {self.config.seed}"
        counts = self.server.counts.tolist()
        figure = curves_figure(rows, title=title, target=self.config.evaluation.target, counts=counts)
        save_figure(figure, self.folder / "curves.png")
        # The last file: a run that has it is finished.
        summary = self._summary(last)
        write_summary(self.folder / "summary.json", summary)
        tracker.table("selection/counts", ("client", "count"), list(enumerate(counts)))
        tracker.summary({f"best/{name}": value for name, value in self.best.items()})
        if not self.config.quiet:
            self._say(summary)
        return _metrics(last)

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
            "wall_seconds": self._wall(),
            "device": device,
            "device_name": device_name(device),
            "versions": versions(),
            "git_commit": git_commit(),
        }

    def _show_finished(self) -> dict[str, float]:
        """Show what a run that had ended before has written; nothing changes."""
        _LOG.info("%s is finished; nothing is left to resume", self.folder)
        summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        if not self.config.quiet:
            self._say(summary)
        return _metrics(self.metrics_file.rows()[-1])

    def _say(self, summary: dict[str, Any]) -> None:
        rows = [("rounds", str(summary["rounds"]))]
        for name, value in summary["best"].items():
            rows.append((name, f"{summary['final'][name]:.4f} (best {value:.4f})"))
        if summary["target"] is not None:
            reached = summary["rounds_to_target"]
            rows.append(
                (f"rounds to {summary['target']:g}", "not reached" if reached is None else str(reached))
            )
        if summary["dropped_updates"]:
            rows.append(("dropped updates", str(summary["dropped_updates"])))
        rows.append(("wall time", f"{summary['wall_seconds']:.1f} s on {summary['device']}"))
        names = ("config.yaml", "metrics.csv", "rounds.jsonl", "summary.json", "curves.png", "partition.png")
        final_table(rows, [self.folder / name for name in (*names, "checkpoints/last.ckpt")])


def _metrics(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name != "round"}
