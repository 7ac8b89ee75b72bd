"""The cells of a comparison: checked before a run starts, read from their folders, and executed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from flsel.comparison.comparison_display import ComparisonProgress
from flsel.comparison.grid import FILE, Cell, Grid
from flsel.comparison.run_table import Run, check_one_score, read_run
from flsel.config import RunConfig
from flsel.config.fingerprint import fingerprint
from flsel.data.population import Source
from flsel.errors import Interrupted, UserError, located
from flsel.execution.executor import Executor, Listener, Sources
from flsel.execution.job import Job
from flsel.execution.on_ray.cluster_cleanup import resume_by
from flsel.metrics import SCORE, Score
from flsel.runner.build import build


def check_cells(grid: Grid, folder: Path, sources: Sources, cost: str) -> Score:
    """Build every variant and every scenario once, so that what does not fit is said before a run starts.

    Returns:
        What all runs are judged by.

    Raises:
        UserError: If something does not fit; the message names the cell.
    """
    scores = dict[Score, str]()
    first = next(grid.cells())
    for scenario, variant in product(grid.scenarios, grid.variants):
        cell = Cell(variant.name, scenario.name, first.seed)
        if both := scenario.changes.keys() & variant.changes.keys():
            raise UserError(f"{variant.name} sets {min(both)}, which --grid varies; set it in one of them.")
        with located(str(cell)):
            config = grid.run_config(cell, folder)
            if cost == "simulated_seconds" and config.devices is None:
                raise UserError(
                    "cost simulated_seconds needs simulated devices, and this run has none: set devices, for "
                    "example --devices LogNormal."
                )
            if first.variant == variant.name or first.scenario == scenario.name:
                scores.setdefault(build(config, sources.get(config)).server.expected_score, str(cell))
    check_one_score(scores)
    return next(iter(scores))


def expected_score(grid: Grid, folder: Path) -> Score:
    """Return what the runs are judged by; runs of other settings than a plain classification's are built.

    Raises:
        UserError: If the run cannot be built.
    """
    config = grid.run_config(next(grid.cells()), folder)
    usual = RunConfig().to_dict()
    given = config.to_dict()
    if all(given[key] == usual[key] for key in ("model", "loss")) and config.evaluation.score is None:
        return SCORE
    return build(config, Sources().get(config)).server.expected_score


def check_settings_of(grid: Grid, folder: Path) -> None:
    """Make the settings of every variant and every scenario once, and build nothing.

    Raises:
        UserError: If a setting does not fit; the message names the cell.
    """
    for cell in replace(grid, seeds=grid.seeds[:1]).cells():
        with located(str(cell)):
            grid.run_config(cell, folder)


def read_cells(
    grid: Grid, folder: Path, known: dict[Path, Run] | None = None, declared: str = FILE
) -> list[Run]:
    """Read every cell as it lies there.

    Args:
        grid: The cells.
        folder: The comparison's folder.
        known: Finished runs by folder, which are not read again; newly finished runs are added. While a
            comparison is executed, nothing writes to them.
        declared: Name of the file that declares the cells, for messages.

    Raises:
        UserError: If one was run with other settings than the comparison declares.
    """
    known = {} if known is None else known
    found, described = [], dict[tuple[str, str], dict[str, Any]]()
    for cell in grid.cells():
        place = cell.place(folder)
        if place in known:
            found.append(known[place])
            continue
        try:
            run = read_run(place, variant=cell.variant, scenario=cell.scenario, seed=cell.seed)
        except UserError as error:
            said = str(error).rstrip(".")
            raise UserError(
                f"{cell}: {said}: put it back, or remove {place} to execute the run again."
            ) from error
        kind = cell.variant, cell.scenario
        if run.settings and kind not in described:
            described[kind] = grid.run_config(cell, folder).to_dict()
        if run.settings and not _was_run_with(run, described[kind] | {"seed": cell.seed}):
            raise UserError(
                f"{place} was run with other settings than {folder / declared} declares; restore that file, "
                "or remove the run's folder to execute it again."
            )
        if run.result is not None:
            known[place] = run
        found.append(run)
    return found


def _was_run_with(run: Run, declared: dict[str, Any]) -> bool:
    """Tell whether a run has the declared settings; those that are newer than it have defaults."""
    expected = fingerprint(declared)
    with suppress(TypeError):  # what no run has written
        if fingerprint(dict(run.settings)) == expected:
            return True
    with located(str(run.folder / "config.yaml")):
        return fingerprint(RunConfig.from_dict(dict(run.settings)).to_dict()) == expected


def waiting(runs: Sequence[Run]) -> list[Run]:
    """Return the cells to execute: a run that diverged would diverge again, one that failed may be mended."""
    return [run for run in runs if run.status in ("missing", "unfinished", "failed")]


def shared_source(grid: Grid, sources: Sources) -> Source | None:
    """Load the dataset of all cells if they have the same one; a generated one depends on the seed.

    Raises:
        UserError: If it is missing, unreadable or malformed.
    """
    config = RunConfig.from_dict(grid.config)
    changes = [key for variant in grid.variants for key in variant.changes]
    changes += [key for scenario in grid.scenarios for key in scenario.changes]
    if config.data.name == "synthetic" or any(key.split(".")[0] in ("data", "clients") for key in changes):
        return None
    return sources.get(config)


def jobs_left(grid: Grid, folder: Path, runs: Sequence[Run]) -> dict[Job, Run]:
    """Return the jobs of the cells to execute, each with its cell as it lies there."""
    cells = {run.folder: Cell(run.variant, run.scenario, run.seed) for run in runs}
    return {
        Job(grid.run_config(cells[run.folder], folder), run.folder, labelled=True): run
        for run in waiting(runs)
    }


def read_again(run: Run) -> Run:
    """Read a cell whose job has ended."""
    return read_run(run.folder, variant=run.variant, scenario=run.scenario, seed=run.seed)


def execute_cells(
    grid: Grid, folder: Path, runs: Sequence[Run], executor: Executor, going_on: str, *, quiet: bool
) -> None:
    """Execute the cells that are left.

    Raises:
        Interrupted: If a signal stopped it.
    """
    jobs = jobs_left(grid, folder, runs)
    resume_by(going_on)

    def ended(job: Job) -> None:
        progress.ended(read_again(jobs[job]))

    with ComparisonProgress(runs, int(grid.config["rounds"]), quiet=quiet) as progress:
        try:
            executor.execute(list(jobs), folder, Listener(ended, progress.advanced))
        except Interrupted as stop:
            raise Interrupted(f"{stop}; {going_on}") from stop
