"""A comparison from its declaration to its report: started, resumed with more, or made of existing runs."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from flsel.comparison.cells import (
    check_cells,
    check_settings_of,
    execute_cells,
    read_cells,
    shared_source,
    waiting,
)
from flsel.comparison.compare_config import CompareConfig, with_budget
from flsel.comparison.comparison import Comparison, judge
from flsel.comparison.comparison_file import read_declaration, write_declaration
from flsel.comparison.grid import FILE, Grid, Scenario, Variant
from flsel.comparison.judging import formatting
from flsel.comparison.judging.claim_words import subject
from flsel.comparison.judging.designs import ACCURACY, DEFAULT_MAX_SEEDS
from flsel.comparison.judging.procedure import guarantee
from flsel.comparison.judging.settings import Change, Judging, Options, usual_baseline
from flsel.comparison.load_runs import gather
from flsel.comparison.parse_variants import all_variants, read_grid, read_seeds
from flsel.comparison.run_table import Run, common_score, complete
from flsel.comparison.until_decided import options_of, parts
from flsel.config import RunConfig
from flsel.errors import UserError, going_on
from flsel.execution.executor import Executor, Sources
from flsel.files import home, new_run_dir
from flsel.metrics import Score
from flsel.runner.lock import Lock
from flsel.runner.saved_settings import short_name
from flsel.runner.terminal import open_console

_LOG = logging.getLogger("flsel")


Additions = tuple[Sequence[Variant], Sequence[Scenario]]
"""Variants and scenarios made in Python, besides those that a comparison's settings name."""
_NOTHING: Additions = ((), ())


def start_comparison(
    config: RunConfig, wanted: CompareConfig, command: str, executor: Executor, given: Additions = _NOTHING
) -> Comparison:
    """Execute a new comparison and judge it.

    Raises:
        UserError: If something does not fit, or a file cannot be written.
        Interrupted: If a signal stopped it; it can be resumed.
    """
    grid = declared_grid(config, wanted, given)
    variants = grid.variants
    judging = Judging.declared(wanted, grid.config["evaluation"]["target"], [v.name for v in variants])
    _check_baseline(judging, grid)
    sources = Sources()
    score = check_cells(grid, Path(wanted.folder), sources, judging.cost)
    with executor.ready(shared_source(grid, sources)):
        folder = new_run_dir(
            wanted.folder,
            wanted.name
            or config.output.name
            or _default_name(config.data.name, (_selector(v.name) for v in variants)),
            "folder",
        )
        with Lock(folder, "comparison"):
            try:
                write_declaration(folder, grid, judging, [command])
            except UserError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            _execute_all(folder, grid, judging, executor, score)
    return read_comparison(folder)


def declared_grid(config: RunConfig, wanted: CompareConfig, given: Additions = _NOTHING) -> Grid:
    """Return the runs of a new comparison, whose settings are checked.

    Raises:
        UserError: If there is nothing to compare, or a variant or a scenario has a wrong setting.
    """
    # Every round is executed, and runs share a device.
    target = wanted.target or config.evaluation.target
    config = replace(config, evaluation=replace(config.evaluation, target=target, stop_at_target=False))
    config = config if wanted.resources is None else wanted.resources.fit(config)
    decides = None if wanted.decides == ACCURACY else wanted.decides
    cost = decides or wanted.cost or ("accuracy" if wanted.until_decided else "rounds")
    config = with_budget(config, wanted.budget, cost)
    base = config.to_dict()
    seeds = (config.seed,) if wanted.seeds is None else read_seeds(wanted.seeds)
    variants = all_variants(given[0], wanted.selectors, wanted.variants, base)
    if not variants:
        raise UserError("nothing to compare: give --selectors Uniform,PowD,... or --variants FILE.")
    if wanted.until_decided:
        if len(variants) < 2:
            raise UserError(f"until_decided needs two variants or more, got {variants[0].name} alone.")
        seeds = tuple(range(1, (wanted.max_seeds or DEFAULT_MAX_SEEDS) + 1))
    scenarios = given[1] or read_grid(wanted.grid)
    grid = Grid(base, tuple(variants), tuple(scenarios), seeds)
    check_settings_of(grid, Path(wanted.folder))
    return grid


def resume_comparison(
    folder: Path, wanted: CompareConfig, command: str, executor: Executor, given: Additions = _NOTHING
) -> Comparison:
    """Resume a comparison: what is complete stays, what is new or was stopped is executed.

    Raises:
        UserError: If the folder is no comparison, or what is added does not fit.
        Interrupted: If a signal stopped it.
    """
    if wanted.budget is not None:
        raise UserError(f"budget must be declared before the first run, got {wanted.budget}.")
    grid, judging, commands = read_declaration(folder)
    more = all_variants(given[0], wanted.selectors, wanted.variants, grid.config)
    scenarios = list(given[1]) or (read_grid(wanted.grid) if wanted.grid else [])
    names = [variant.name for variant in grid.variants]
    before = read_cells(grid, folder)
    seen = _seen(before)
    judging = judging.asked_again(wanted, seen, usual_baseline(names))
    if judging.until_decided and wanted.seeds is not None:
        raise UserError(f"seeds must not be given here, as they are run until decided; got {wanted.seeds}.")
    seeds = () if wanted.seeds is None else read_seeds(wanted.seeds)
    if judging.until_decided:
        seeds = tuple(range(1, judging.max_seeds + 1))
    grown = grid.merged(more, scenarios, seeds)
    judging = judging.changed(*_added(grid, grown, seen, until_decided=judging.until_decided))
    _check_baseline(judging, grown)
    sources = Sources()
    score = common_score(before)
    if grown != grid or not complete(before):
        score = check_cells(grown, folder.parent, sources, judging.cost)
    with Lock(folder, "comparison"):
        runs = read_cells(grown, folder)  # refuses before anything is written
        left = waiting(runs)
        with executor.ready(shared_source(grown, sources)) if left else nullcontext():
            write_declaration(folder, grown, judging, [*commands, command])
            if left:
                _execute_all(folder, grown, judging, executor, score)
    return read_comparison(folder, runs=None if left else runs)


def existing(patterns: Sequence[str], wanted: CompareConfig, command: str) -> Comparison:
    """Compare existing runs; the report gets a folder of its own.

    Raises:
        UserError: If a run does not fit, or nothing is left to compare.
    """
    made = compare_runs(patterns, wanted)
    runs = made.analysis.runs
    dataset = runs[0].settings.get("data", {}).get("name", "runs")
    name = wanted.name or _default_name(dataset, dict.fromkeys(map(_selector, made.analysis.variants)))
    folder = new_run_dir(wanted.folder, name, "folder")
    for place in _homes(runs):
        try:
            with Lock(place, "comparison"):
                grid, judging, commands = read_declaration(place)
                again = (*judging.judged_again, f"{command} (after {formatting.seeds(_seen(runs))})")
                write_declaration(place, grid, replace(judging, judged_again=again), commands)
        except UserError as error:
            _LOG.warning("%s does not keep that its runs were judged again: %s", place / FILE, error)
    return replace(made, folder=folder, commands=(command,))


def _homes(runs: Sequence[Run]) -> list[Path]:
    """Return the folders of the comparisons that runs belong to."""
    homes = {run.folder.parents[3] for run in runs if len(run.folder.parents) > 3}
    return sorted(place for place in homes if (place / FILE).is_file())


def compare_runs(patterns: Sequence[str], wanted: CompareConfig) -> Comparison:
    """Judge existing runs, or a comparison by its folder, without writing anything.

    Raises:
        UserError: If a run does not fit, or nothing is left to compare.
    """
    if len(patterns) == 1 and (home(patterns[0]) / FILE).is_file():
        return read_comparison(home(patterns[0]), wanted)
    runs, tuned = gather(patterns, wanted.mismatch, wanted.pick)
    names = list(dict.fromkeys(run.variant for run in complete(runs)))
    judging, cells, seen = _declared_by(runs, names)
    again = judging.asked_again(wanted, seen, usual_baseline(names) if names else None)
    after = again.target_after or again.target != judging.target
    kept = vars(again) | {"baseline": again.baseline or "", "target_after": after}
    options = Options(**kept, unpaired=wanted.mismatch == "unpaired", declared_cells=cells)
    return Comparison(judge(runs, options, tuned))


def _declared_by(runs: Sequence[Run], names: Sequence[str]) -> tuple[Judging, int, int]:
    """Return what the comparisons declare whose runs are judged by their folders.

    To judge runs of several comparisons, a part of one, or one that added seeds until its claims were
    decided, is a choice made when results could be seen.

    Returns:
        How they are judged; the pairs of variant and scenario that were declared; and the number of seeds
        whose results could be seen, 0 of runs that belong to no comparison.
    """
    stated = {run.settings.get("evaluation", {}).get("target") for run in runs}
    plain = Judging(target=stated.pop() if len(stated) == 1 else None)
    homes = _homes(runs)
    if not homes:
        return plain, 0, 0
    declared = [read_declaration(place) for place in homes]
    grids = [grid for grid, _, _ in declared]
    cells = sum((len(grid.variants) - 1) * len(grid.scenarios) for grid in grids)
    total = sum(len(list(grid.cells())) for grid in grids)
    judging, seen = declared[0][1], _seen(runs)
    adaptive = judging.until_decided
    if len(homes) > 1:
        judging = plain
    baseline = judging.baseline if judging.baseline in names else None
    judging = replace(judging, baseline=baseline, until_decided=False)
    if len(homes) > 1 or adaptive or len(runs) != total:
        judging = judging.changed(Change("runs", total, len(runs), seen))
    return judging, cells, seen


def read_comparison(
    folder: Path, wanted: CompareConfig | None = None, runs: Sequence[Run] | None = None
) -> Comparison:
    """Judge a comparison as it lies in its folder.

    Args:
        folder: The folder.
        wanted: How to judge it instead of as it declares; None and what is null in it change nothing.
        runs: Its cells, if they were just read.

    Raises:
        UserError: If the folder is no comparison, or has nothing to judge yet.
    """
    grid, judging, commands = read_declaration(folder)
    cells = read_cells(grid, folder) if runs is None else runs
    if wanted is not None:
        judging = judging.asked_again(wanted, _seen(cells), usual_baseline([v.name for v in grid.variants]))
    tuned = {v.name: v.tuned for v in grid.variants if v.tuned is not None}
    options = options_of(grid, judging, folder)
    if judging.until_decided:  # runs that no claim needs were never to be executed
        cells = [run for run in cells if run.status != "missing"]
    return Comparison(judge(cells, options, tuned), folder, tuple(commands))


def _seen(runs: Sequence[Run]) -> int:
    """Return the number of seeds under which results of two variants or more could be seen."""
    done: dict[int, set[str]] = {}
    for run in complete(runs):
        done.setdefault(run.seed, set()).add(run.variant)
    return sum(len(variants) > 1 for variants in done.values())


def _added(before: Grid, after: Grid, seen: int, *, until_decided: bool) -> Iterator[Change]:
    """Yield what a grid has more: variants, scenarios, and seeds that were not declared."""
    for what in ("variants", "scenarios"):
        old, new = ([item.name for item in getattr(grid, what)] for grid in (before, after))
        if more := [name for name in new if name not in old]:
            yield Change(what, len(old), more, seen)
    if len(before.seeds) != len(after.seeds) and not until_decided:
        yield Change("seeds", len(before.seeds), len(after.seeds), seen)


def _execute_all(folder: Path, grid: Grid, judging: Judging, executor: Executor, score: Score) -> None:
    """Execute every cell, or look by look those whose claims are undecided."""
    if not judging.until_decided:
        _execute(folder, grid, executor, read_cells(grid, folder))
        return
    design = judging.design(len(grid.variants), len(grid.scenarios))
    if not grid.config["quiet"]:
        most = design.maximum * len(grid.variants) * len(grid.scenarios)
        open_console().print(
            f"At most {most} runs: a variant stops at {', '.join(map(str, design.looks))} seeds when its "
            f"claim about {subject(judging.deciding(score))} is decided. "
            f"{guarantee(design)}",
            highlight=False,
        )
    known = dict[Path, Run]()
    for part in parts(grid, folder, judging, known):
        runs = read_cells(part, folder, known)
        if waiting(runs):
            _execute(folder, part, executor, runs)


def _execute(folder: Path, grid: Grid, executor: Executor, runs: Sequence[Run]) -> None:
    """Execute the cells that are left."""
    more, quiet = f"continue with: {going_on('compare', folder)}", bool(grid.config["quiet"])
    execute_cells(grid, folder, runs, executor, more, quiet=quiet)


def _check_baseline(judging: Judging, grid: Grid) -> None:
    names = [variant.name for variant in grid.variants]
    if judging.baseline is not None and judging.baseline not in names:
        raise UserError(f"baseline must be one of the variants {', '.join(names)}, got {judging.baseline}.")


def _default_name(dataset: str, names: Iterable[str]) -> str:
    """Make the name of a folder of what a dataset and variants are called."""
    return re.sub(r"[^\w.=+-]+", "_", f"{short_name(dataset)}-{'-'.join(names)}")[:80]


def _selector(variant: str) -> str:
    """Return the name of a variant without its arguments, in lower case."""
    return variant.split(":")[0].lower()
