"""One federated run, from settings to files: a run is a function of its config."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import yaml

from flsel.config import RunConfig
from flsel.config.describe import describe
from flsel.errors import Interrupted, UserError
from flsel.files import new_run_dir, write_atomic
from flsel.report.partition import partition_figure
from flsel.report.style import save_figure
from flsel.runner.build import build, make_fabric
from flsel.runner.interrupt import Interrupt
from flsel.runner.progress import Progress, final_table
from flsel.runner.session import Session
from flsel.runner.tracking import Tracker, make_loggers

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
        return _play(Session(config, described, built, folder))
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
    return _play(Session(config, describe(config), built, folder))


def default_name(config: RunConfig) -> str:
    """Name a run after its dataset, selector and seed."""
    dataset = config.data.name.rpartition(".")[2].lower()
    return f"{dataset}-{type(config.selector).__name__.lower()}-s{config.seed}"


def _play(session: Session) -> dict[str, float]:
    """Play the rounds that are left."""
    session.restore()
    quiet = session.config.quiet
    summary_file = session.folder / "summary.json"
    if session.server.finished and summary_file.exists():
        _LOG.info("%s is finished; nothing is left to resume", session.folder)
        summary = json.loads(summary_file.read_text(encoding="utf-8"))
    else:
        session.tracker = _open_tracker(session)
        status = "failed"
        try:
            _loop(session)
            summary = session.end()
            status = "success"
        finally:
            session.tracker.close(status)
    if not quiet:
        _say(session.folder, summary)
    rows = session.metrics_file.rows()
    if not rows:
        raise UserError(f"{session.folder / 'metrics.csv'} has no rows, though the run is finished.")
    last = rows[-1]
    return {name: value for name, value in last.items() if name != "round"}


def _open_tracker(session: Session) -> Tracker:
    config, data = session.config, session.built.data
    loggers = make_loggers(
        config.track,
        run_dir=session.folder,
        name=session.folder.name,
        resolved_config=session.described,
        tags=(type(config.selector).__name__, data.name),
    )
    session.built.fabric.loggers.extend(loggers)
    tracker = Tracker(loggers)
    picture = session.folder / "partition.png"
    if not picture.exists():
        counts = session.server.federation.labels.numpy()
        save_figure(partition_figure(counts, f"{data.name}: {len(counts)} clients"), picture)
    tracker.image("partition", picture, session.server.round)
    return tracker


def _loop(session: Session) -> None:
    server, every = session.server, session.config.output.checkpoint_every
    session.begin()
    progress = Progress(server.federation.rounds, quiet=session.config.quiet, start=server.round)
    with progress, Interrupt() as interrupt:
        while not server.finished:
            record = session.step()
            progress.update(server.round, record.metrics or {})
            due = record.completed // every > record.round // every
            if server.finished or interrupt.requested or due:
                session.save()
            if interrupt.requested and not server.finished:
                raise Interrupted(
                    f"stopped after round {server.round} of {server.federation.rounds}; continue with: "
                    f"flsel train --resume {session.folder}"
                )


def _say(folder: Path, summary: dict[str, Any]) -> None:
    rows = [("rounds", str(summary["rounds"]))]
    for name, value in summary["best"].items():
        rows.append((name, f"{summary['final'][name]:.4f} (best {value:.4f})"))
    if summary["target"] is not None:
        reached = summary["rounds_to_target"]
        rows.append((f"rounds to {summary['target']:g}", "not reached" if reached is None else str(reached)))
    if summary["dropped_updates"]:
        rows.append(("dropped updates", str(summary["dropped_updates"])))
    rows.append(("wall time", f"{summary['wall_seconds']:.1f} s on {summary['device']}"))
    names = ("config.yaml", "metrics.csv", "rounds.jsonl", "summary.json", "curves.png", "partition.png")
    final_table(rows, [folder / name for name in (*names, "checkpoints/last.ckpt")])
