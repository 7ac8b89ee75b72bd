"""One federated run in this process, from settings to files: a run is a function of its config."""

from __future__ import annotations

import logging
from pathlib import Path

from flsel.arguments import shown
from flsel.config import RunConfig
from flsel.engine.server import RoundRecord
from flsel.errors import DivergedError, Interrupted, UserError, going_on, machine_failed
from flsel.execution.active_run import ActiveRun
from flsel.execution.on_ray.cluster_cleanup import resume_by
from flsel.execution.on_ray.workers import workers
from flsel.execution.progress import Progress, final_table
from flsel.execution.single_run import single_run
from flsel.execution.stack import Stack
from flsel.files import home
from flsel.runner.build import build
from flsel.runner.checkpoint import belongs
from flsel.runner.privacy import privacy_lines
from flsel.runner.result import Result
from flsel.runner.saved_settings import read_config
from flsel.runner.session import Session
from flsel.runner.summary import sequential_since
from flsel.runner.terminal import in_notebook

_LOG = logging.getLogger("flsel")
_FILES = ("config.yaml", "metrics.csv", "rounds.jsonl", "summary.json", "curves.png", "partition.png")


def run(config: RunConfig, *, pictures: bool = False) -> Result:
    """Train a federated model and write what happened to a new folder.

    Args:
        config: The settings; its fields are the schema of the YAML file and of the command line.
        pictures: Draw ``curves.png`` and ``partition.png`` into the folder; the methods ``plot_*`` of the
            result draw them when they are asked for.

    Returns:
        What the run did and measured, and its model.

    Raises:
        UserError: If a setting is wrong, a file cannot be written, every client of a round diverges, or
            another thread executes a run.
        Interrupted: If a signal stopped the run; it can be resumed.
    """
    if not isinstance(config, RunConfig):
        raise UserError(f"run takes a RunConfig, such as flsel.RunConfig(rounds=50), got {shown(config)}.")
    with single_run(), workers() as processes:
        return execute(Session.start(config, build(config, workers=processes), pictured=pictures))


def resume(folder: str | Path, rounds: int | None = None, *, pictures: bool = False) -> Result:
    """Continue a run from its last checkpoint, or from the start if it has none yet.

    Args:
        folder: The run's folder.
        rounds: Communication rounds that the run shall have, for a run whose settings do not depend on their
            number; None keeps it.
        pictures: As for :func:`run`.

    Returns:
        As :func:`run`, with the numbers of a run that was never interrupted.

    Raises:
        UserError: As :func:`run`, or if what is in the folder is damaged or another process writes to it.
    """
    if (done := finished(home(folder), rounds)) is not None:
        show(done)
        return done
    with single_run(), workers() as processes:
        config = read_config(home(folder), rounds)
        built = build(config, workers=processes)
        return execute(Session(config, home(folder), built, pictured=pictures))


def finished(folder: Path, rounds: int | None) -> Result | None:
    """Return the result of a run that is complete, without importing or calling what its settings name.

    Args:
        folder: The run's folder.
        rounds: Communication rounds that the run shall have; None keeps the number.

    Returns:
        The result; None if something is left to do, or to be checked.
    """
    try:
        done = Result.load(folder)
    except UserError:  # reported by whatever resumes the run
        return None
    asked = done.settings.get("rounds") if rounds is None else rounds
    complete = asked == done.summary["planned_rounds"] and belongs(folder, done.settings)
    return done if complete else None


def show(done: Result) -> None:
    """Say that a run is finished, and what it measured."""
    _LOG.info("%s is finished; nothing is left to resume", done.folder)
    if not done.settings.get("quiet") and not in_notebook():
        _say(done)


def execute(session: Session) -> Result:
    """Execute the rounds of a session that are left, and close it.

    Raises:
        UserError: As :func:`run`.
        Interrupted: As :func:`run`.
    """
    active = ActiveRun(session.folder, lambda: session, asked_for=True)
    _execute(active)
    if active.error is not None:
        raise _with_advice(active)
    result = Result.load(session.folder)
    # The settings at hand may hold a model object, which config.yaml cannot.
    vars(result)["config"] = session.config
    if not session.config.quiet and not in_notebook():  # where a result shows itself
        _say(result)
    return result


def _execute(active: ActiveRun) -> None:
    def advance(_: ActiveRun, record: RoundRecord) -> None:
        progress.update(record.completed, record.metrics or {})

    with Stack([active], advance) as stack:
        if not stack.active:
            if active.error is None:
                _LOG.info("%s is finished; nothing is left to resume", active.folder)
            return
        session, more = active.session, f"continue with: {going_on('train', active.folder)}"
        resume_by(more)
        progress = Progress(
            session.server.federation.rounds,
            quiet=session.config.quiet,
            start=session.server.round,
            score=session.server.score,
        )
        try:
            with progress:
                stack.execute_until_signal()
        except Interrupted as stop:
            raise Interrupted(f"{stop}; {more}") from stop


def _with_advice(active: ActiveRun) -> Exception:
    """Return the error of a run; where rounds have been executed, it says whether they can be resumed."""
    error = active.error
    assert error is not None
    if not isinstance(error, UserError) or not active.opened or active.round == 0:
        return error
    resumed = f"resume with: {going_on('train', active.folder)}"
    if machine_failed(error):
        advice = f"Once that is mended, {resumed}"
    elif isinstance(error, DivergedError):
        advice = "A resumed run keeps its settings and would end so again: start a new run with others."
    else:
        advice = f"For other settings start a new run; once your code or files are corrected, {resumed}"
    advised = type(error)(f"{error} {advice}")
    advised.__cause__ = error.__cause__
    return advised


def _say(result: Result) -> None:
    summary = result.summary
    rows = [("rounds", str(summary["rounds"]))]
    if passed := sum(not step.clients for step in result.rounds):
        rows.append(("rounds in which nobody trained", str(passed)))
    for name, value in result.best.items():
        rows.append((name, f"{result.final[name]:.4f} (best {value:.4f})"))
    if summary["target"] is not None:
        reached = summary["rounds_to_target"]
        rows.append((f"rounds to {summary['target']:g}", "not reached" if reached is None else str(reached)))
    if summary["dropped_updates"]:
        rows.append(("dropped updates", str(summary["dropped_updates"])))
    if "train" in result.self_check:
        rows.append(("trained by", sequential_since(result.self_check["train"])))
    rows += [("privacy", line) for line in privacy_lines(summary["privacy"])]
    if "clock/seconds" in result.final:
        rows.append(("simulated time", f"{result.final['clock/seconds']:,.1f} s"))
    rows.append(("wall time", f"{summary['wall_seconds']:.1f} s on {summary['device']}"))
    paths = [result.folder / name for name in (*_FILES, "checkpoints/last.ckpt")]
    final_table(rows, [path for path in paths if path.exists()])
