"""A race from its declaration to its end: runs are executed look by look."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

import numpy as np

from flsel.choosing.choice_file import FILE, Declared, RaceRules, read_declared, write_declared
from flsel.choosing.choose_config import ACCURACY, DEFAULT_MARGIN, DEFAULT_RATIO, ChooseConfig
from flsel.choosing.entrants import find_entrants
from flsel.choosing.guarantee import guarantee
from flsel.choosing.race import Race, looks
from flsel.comparison.cells import execute_cells, read_cells, shared_source, waiting
from flsel.comparison.grid import Grid, Scenario, Variant
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.run_table import Run, common_score, complete, mark_diverged
from flsel.config import RunConfig
from flsel.errors import UserError, going_on
from flsel.execution.executor import Executor, Sources
from flsel.execution.in_process import InProcess
from flsel.files import new_run_dir
from flsel.metrics import Score
from flsel.runner.lock import Lock
from flsel.runner.saved_settings import short_name
from flsel.runner.terminal import open_console

# Looks that take longer are worth the start of Ray.
_LONG_SECONDS = 90.0

Execute = Callable[[Grid, Sequence[Run]], None]


@dataclass
class Standing:
    """A race after its last complete look.

    Attributes:
        race: Its state.
        high: Upper ends of the values, ``[1, k, seeds]``.
        low: Lower ends, likewise; None where the score decides.
        deciding: What is compared.
        runs: The runs by name and seed.
        lost: Why a variant lost by a run that diverged or failed, by name.
        passed: By name the number of seeds at which a variant left the race.
        whole: Whether the race is at its end; else runs are missing.
    """

    race: Race
    high: np.ndarray
    low: np.ndarray | None
    deciding: Deciding
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    whole: bool = False


Executed = tuple[Path, Declared, Standing]


def start_race(
    config: RunConfig,
    wanted: ChooseConfig,
    command: str,
    executor: Executor,
    more: Sequence[Variant] = (),
) -> Executed:
    """Run a new race.

    Args:
        config: The runs' settings.
        wanted: The race's.
        command: The command line, for the report.
        executor: Executes the runs.
        more: Variants made in Python.

    Returns:
        Its folder, what it declares, and its end.

    Raises:
        UserError: If something does not fit, fewer than two may race, or a file cannot be written.
        Interrupted: If a signal stopped it; it can be resumed.
    """
    declared, sources = _declare(config, wanted, command, more)
    with executor.ready(shared_source(declared.grid, sources)):
        name = wanted.name or config.output.name or re.sub(r"[^\w.=+-]+", "_", short_name(config.data.name))
        folder = new_run_dir(wanted.folder, name, "folder")
        with Lock(folder, "race"):
            try:
                write_declared(folder, declared)
            except UserError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            return folder, declared, _run(folder, declared, executor)


def resume_race(folder: Path, executor: Executor) -> Executed:
    """Resume a race; the looks that were taken are taken again, with the runs that are there.

    Args:
        folder: Its folder.
        executor: Executes the runs that are left.

    Returns:
        As :func:`start_race`.

    Raises:
        UserError: If the folder is no race's, or damaged.
        Interrupted: If a signal stopped it.
    """
    declared = read_declared(folder)
    with Lock(folder, "race"):
        standing = follow(folder, declared)
        if not standing.whole:
            with executor.ready(shared_source(declared.grid, Sources())):
                standing = _run(folder, declared, executor)
    return folder, declared, standing


def _declare(
    config: RunConfig, wanted: ChooseConfig, command: str, more: Sequence[Variant]
) -> tuple[Declared, Sources]:
    """Find who races, and say what decides."""
    target = wanted.target or config.evaluation.target
    if wanted.decides != ACCURACY and target is None:
        raise UserError(f"decides {wanted.decides} needs a target: give target, for example --target 0.8.")
    if wanted.decides == "simulated_seconds" and config.devices is None:
        raise UserError(
            "decides simulated_seconds needs simulated devices, and the run has none: set devices, for "
            "example --devices LogNormal."
        )
    stops = config.evaluation.stop_at_target
    config = replace(config, evaluation=replace(config.evaluation, target=target, stop_at_target=False))
    config = config if wanted.resources is None else wanted.resources.fit(config)
    sources = Sources()
    found = find_entrants(config, wanted, more, sources)
    if len(found.variants) < 2:
        why = f"; left out: {_listed(found.left_out)}" if found.left_out else ""
        raise UserError(f"a race needs two variants or more, got {len(found.variants)}{why}.")
    rules = RaceRules(
        wanted.decides,
        _margin(wanted, found.score),
        wanted.last,
        None if wanted.decides == ACCURACY else target,
        wanted.may,
        stops,
    )
    seeds = tuple(range(1, wanted.max_seeds + 1))
    grid = Grid(config.to_dict(), found.variants, (Scenario(),), seeds)
    return Declared(grid, rules, found.needs, found.left_out, (command,)), sources


def _margin(wanted: ChooseConfig, score: Score) -> float:
    """Return the margin that decides: in points, in the unit of another score, or a ratio of costs."""
    if wanted.decides != ACCURACY:
        return wanted.margin_ratio or DEFAULT_RATIO
    if wanted.margin is None and not score.is_share:
        raise UserError(
            f"margin must be given where {score.words} decides: a difference that does not matter."
        )
    return wanted.margin or DEFAULT_MARGIN


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {reason}" for name, reason in reasons.items()) or "nobody"


def _run(folder: Path, declared: Declared, executor: Executor) -> Standing:
    """Execute what is left of a race to its end, and say after each look who is left."""
    quiet, out = bool(declared.grid.config["quiet"]), open_console()
    again, cores = going_on("choose", folder), os.cpu_count() or 1
    advised = cores == 1 or not isinstance(executor, InProcess)

    def execute(part: Grid, runs: Sequence[Run]) -> None:
        nonlocal advised
        began = monotonic()
        execute_cells(part, folder, runs, executor, f"continue with: {again}", quiet=quiet)
        took = monotonic() - began
        if took > _LONG_SECONDS and not advised:
            said(
                f"{took / 60:.0f} minutes to this look in one process: after Ctrl-C, "
                f"`{again} --max-concurrent {cores}` goes on with {cores}."
            )
            advised = True

    def said(text: str) -> None:
        if not quiet:
            out.print(text, markup=False, highlight=False, soft_wrap=True)

    said(
        f"{len(declared.names)} race, with at most {len(declared.grid.seeds)} seeds each; "
        f"{len(declared.left_out)} left out ({FILE} says why)."
    )
    return follow(folder, declared, execute, said)


def follow(
    folder: Path,
    declared: Declared,
    execute: Execute | None = None,
    said: Callable[[str], None] | None = None,
) -> Standing:
    """Take the looks of a race.

    Args:
        folder: Its folder.
        declared: What it declares.
        execute: Executes the cells of a part that are left; None stops where some are.
        said: Told after each look who is left.

    Returns:
        The race after its last complete look.

    Raises:
        UserError: If a run's folder is damaged, or no run of the first look could be counted.
        Interrupted: If a signal stopped it.
    """
    grid, names, deciding = declared.grid, declared.names, declared.rules.deciding
    known, shape = dict[Path, Run](), (1, len(names), len(grid.seeds))
    margin = declared.rules.margin if deciding.target is None else math.log(declared.rules.margin)
    high, low = np.zeros(shape), np.zeros(shape)
    found = Standing(Race(shape[:2], margin), high, None if deciding.target is None else low, deciding)
    for n in looks(len(grid.seeds)):
        race = found.race
        part = replace(
            grid,
            variants=tuple(v for v, runs in zip(grid.variants, race.running[0], strict=True) if runs),
            seeds=grid.seeds[:n],
        )
        runs = read_cells(part, folder, known, FILE)
        if waiting(runs) and execute is not None:
            execute(part, runs)
            runs = read_cells(part, folder, known, FILE)
        if any(run.status in ("missing", "unfinished") for run in runs):
            return found
        before = race.left[0].copy()
        found.deciding = replace(deciding, score=common_score(runs))
        _count(found, declared, runs)
        if n == looks(len(grid.seeds))[0]:
            race.resolution = found.deciding.resolution(runs, complete(runs))
        lost = np.array([[name in found.lost for name in names]])
        if not (race.left & ~lost).any():
            raise UserError(f"every variant has a run that failed or diverged: {_listed(found.lost)}.")
        race.look(n, high, found.low, lost)
        gone = [name for name, was, now in zip(names, before, race.left[0], strict=True) if was and not now]
        found.passed |= dict.fromkeys(gone, n)
        if said is not None:
            said(_look_in_words(found, names, n, gone))
        if race.over[0]:
            break
    found.whole = True
    return found


def _count(found: Standing, declared: Declared, runs: Sequence[Run]) -> None:
    """Take the values of runs, and note who lost by one."""
    rows = {name: at for at, name in enumerate(declared.names)}
    columns = {seed: at for at, seed in enumerate(declared.grid.seeds)}
    for run in (mark_diverged(run, declared.rules.last) for run in runs):
        found.runs[run.variant, run.seed] = run
        if run.status == "complete":
            at = 0, rows[run.variant], columns[run.seed]
            low, found.high[at] = found.deciding.value(run)
            if found.low is not None:
                found.low[at] = low
        else:
            found.lost.setdefault(run.variant, f"{run.status} in seed {run.seed}: {run.reason.rstrip('.')}")


def _look_in_words(found: Standing, names: Sequence[str], n: int, gone: Sequence[str]) -> str:
    """Say who leads, how many are left and run on, who left, and what is sure so far."""
    race = found.race
    left, running = int(race.left.sum()), int(race.running.sum())
    told = f"{n} seeds: {names[int(race.leader[0])]} leads, {left} left"
    if not race.over[0]:
        told += f", {running} run on"
    told += f"; out: {', '.join(gone)}" if gone else ""
    known = guarantee(race, found.deciding)
    return f"{told}; {known}" if known and not race.over[0] else told
