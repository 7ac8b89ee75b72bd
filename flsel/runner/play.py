"""One federated run, from settings to files: a run is a function of its config."""

from __future__ import annotations

import logging
from pathlib import Path

from flsel.arguments import shown
from flsel.config import RunConfig
from flsel.errors import Interrupted, UserError, going_on, users_code
from flsel.files import home
from flsel.runner.alone import alone
from flsel.runner.interrupt import Interrupt
from flsel.runner.progress import Progress, final_table
from flsel.runner.result import Result
from flsel.runner.session import Session

_LOG = logging.getLogger("flsel")
_FILES = ("config.yaml", "metrics.csv", "rounds.jsonl", "summary.json", "curves.png", "partition.png")


def run(config: RunConfig) -> Result:
    """Train a federated model and write what happened to a new folder.

    Args:
        config: The settings; its fields are the schema of the YAML file and of the command line.

    Returns:
        What the run did and measured, and its model.

    Raises:
        UserError: If a setting is wrong, a file cannot be written, every client of a round diverges, or
            another thread plays a run.
        Interrupted: If a signal stopped the run; it can be resumed.
    """
    if not isinstance(config, RunConfig):
        raise UserError(f"run takes a RunConfig, such as flsel.RunConfig(rounds=50), got {shown(config)}.")
    with alone():
        return play(Session.start(config))


def resume(folder: str | Path, rounds: int | None = None) -> Result:
    """Continue a run from its last checkpoint, or from the start if it has none yet.

    Args:
        folder: The run's folder.
        rounds: Communication rounds that the run shall have, for a run whose settings do not depend on their
            number; None keeps it.

    Returns:
        As :func:`run`, with the numbers of a run that was never interrupted.

    Raises:
        UserError: As :func:`run`, or if what is in the folder is damaged or another process writes to it.
    """
    with alone():
        return play(Session.resume(home(folder), rounds))


def play(session: Session) -> Result:
    """Play the rounds of a session that are left, and close it."""
    with session:
        if session.complete:
            _LOG.info("%s is finished; nothing is left to resume", session.folder)
        else:
            try:
                with users_code("the run stopped", wide=True):
                    _loop(session)
                    session.end()
            except UserError as error:
                if session.server.round == 0:
                    raise
                hint = f"Mend it and go on with: {going_on('train', session.folder)}"
                raise type(error)(f"{error} {hint}") from error.__cause__
    result = Result.load(session.folder)
    # The settings at hand may hold a model object, which config.yaml cannot.
    vars(result)["config"] = session.config
    if not session.config.quiet:
        _say(result)
    return result


def _loop(session: Session) -> None:
    server, every = session.server, session.config.output.checkpoint_every
    progress = Progress(server.federation.rounds, quiet=session.config.quiet, start=server.round)
    with progress, Interrupt() as interrupt:
        while not session.over:
            record = session.step()
            progress.update(server.round, record.metrics or {})
            due = record.completed // every > record.round // every
            if session.over or interrupt.requested or due:
                session.save()
            if interrupt.requested and not session.over:
                raise Interrupted(
                    f"stopped after round {server.round} of {server.federation.rounds}; continue with: "
                    f"{going_on('train', session.folder)}"
                )


def _say(result: Result) -> None:
    summary = result.summary
    rows = [("rounds", str(summary["rounds"]))]
    for name, value in result.best.items():
        rows.append((name, f"{result.final[name]:.4f} (best {value:.4f})"))
    if summary["target"] is not None:
        reached = summary["rounds_to_target"]
        rows.append((f"rounds to {summary['target']:g}", "not reached" if reached is None else str(reached)))
    if summary["dropped_updates"]:
        rows.append(("dropped updates", str(summary["dropped_updates"])))
    rows.append(("wall time", f"{summary['wall_seconds']:.1f} s on {summary['device']}"))
    final_table(rows, [result.folder / name for name in (*_FILES, "checkpoints/last.ckpt")])
