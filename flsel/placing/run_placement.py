"""Run a selector in the scenarios of an atlas, after three runs of the baseline were repeated."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flsel.comparison.cells import execute_cells, read_cells, shared_source, waiting
from flsel.comparison.comparison_file import read_declaration, write_declaration
from flsel.comparison.grid import FILE, Grid, Tuning, Variant
from flsel.comparison.judging.settings import Judging
from flsel.comparison.parse_variants import SHARED, all_variants, check_names, read_selectors
from flsel.comparison.run_table import Run
from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.execution.executor import Executor, Sources
from flsel.files import home, naming
from flsel.placing.contributed import with_contributions
from flsel.placing.place_config import PlaceConfig
from flsel.placing.placement import Placement, place_runs
from flsel.placing.shipped_atlas import BASE, ShippedAtlas, read_atlas
from flsel.runner.lock import Lock

_FIXED = (*SHARED, "model", "loss", "devices")
"""What a placement has in common with the committed runs, so that the difference is the selector's."""


def run_placement(
    selectors: Sequence[str],
    wanted: PlaceConfig,
    command: str,
    executor: Executor,
    more: Sequence[Variant] = (),
    *,
    quiet: bool = False,
) -> Placement:
    """Place selectors on an atlas; a placement that was stopped is continued.

    Args:
        selectors: Names or import paths, with arguments after colons.
        wanted: The settings.
        command: The command line, for the files.
        executor: Executes the runs.
        more: Variants made in Python.
        quiet: Show no progress.

    Raises:
        UserError: If something does not fit, or the folder holds another placement.
        Interrupted: If a signal stopped it; the same command continues it.
    """
    atlas = read_atlas(wanted.atlas)
    seeds = wanted.seeds or atlas.most_seeds
    if seeds > atlas.most_seeds:
        raise UserError(f"seeds must be at most {atlas.most_seeds} on the atlas {atlas.name}, got {seeds}.")
    atlas = with_contributions(atlas, seeds)
    variants = _variants(selectors, wanted, more, atlas)
    grid = atlas.grid(variants, seeds)
    shown = re.sub(r"[^\w.=+-]+", "_", f"{'-'.join(v.name for v in variants)}-{atlas.name}")[-80:]
    folder = home(wanted.folder) / (wanted.name or shown.strip("._-"))
    source = shared_source(grid, Sources())  # what is missing is said before anything is written
    known = _declared(folder, grid, atlas, command)
    with Lock(folder, "placement"), executor.ready(source):
        # What fails always is said after one run.
        _execute(folder, replace(grid, scenarios=grid.scenarios[:1], seeds=(1,)), executor, quiet=quiet)
        base = _execute(folder, _baseline(atlas, seeds), executor, quiet=quiet)
        runs = _execute(folder, grid, executor, quiet=quiet)
        same = all(atlas.repeats(run) for run in base) and all(atlas.is_paired(run) for run in runs)
        if not same:
            whole = atlas.grid((Variant(BASE, {"selector": BASE}),), seeds)
            base = _execute(folder, whole, executor, quiet=quiet)
    tuned = {variant.name: _tuned(variant.tuned) for variant in variants if variant.tuned is not None}
    return replace(place_runs(atlas, runs, base if not same else [], (folder, known)), tuned=tuned)


def _tuned(search: Tuning) -> str:
    """Say with how many trials, and on which seeds, settings were searched."""
    return f"{search.trials} trials of {search.rounds} rounds on seeds {', '.join(map(str, search.seeds))}"


def _variants(
    selectors: Sequence[str], wanted: PlaceConfig, more: Sequence[Variant], atlas: ShippedAtlas
) -> tuple[Variant, ...]:
    """Return what is placed, under names that the atlas does not have."""
    named = [*more, *(variant for text in selectors for variant in read_selectors(text))]
    found = all_variants(named, None, wanted.variants, dict(atlas.config))
    if not found:
        raise UserError("nothing to place: name a selector, as in flsel place my_selector.EpsilonGreedy.")
    own = {} if wanted.objective is None else {"objective": wanted.objective}
    made = [Variant(_short(v.name, atlas), {**own, **v.changes}, v.tuned) for v in found]
    check_names(made)
    for variant in made:
        fixed = next((key for key in variant.changes if key.split(".")[0] in _FIXED), None)
        if fixed is not None:
            raise UserError(f"{variant.name} must not set {fixed}: the committed runs have the atlas's.")
        RunConfig.from_dict(dict(atlas.config), variant.changes)
    return tuple(made)


def _short(name: str, atlas: ShippedAtlas) -> str:
    """Return the name of a class without its module; one of the atlas is told apart."""
    head, colon, arguments = name.partition(":")
    plain = f"{head.rpartition('.')[2]}{colon}{arguments}"
    return f"{plain} (placed)" if plain in atlas.measured.selectors else plain


def _baseline(atlas: ShippedAtlas, seeds: int) -> Grid:
    """Return three cells of the baseline: of the first scenario, the middle one and the last."""
    whole = atlas.grid((Variant(BASE, {"selector": BASE}),), seeds)
    chosen = {0, len(whole.scenarios) // 2, len(whole.scenarios) - 1}
    return replace(whole, scenarios=tuple(whole.scenarios[at] for at in sorted(chosen)), seeds=(1,))


def _declared(folder: Path, grid: Grid, atlas: ShippedAtlas, command: str) -> list[str]:
    """Write what a new folder holds, and refuse one that holds another placement; return its commands."""
    if (folder / FILE).is_file():
        known, _, commands = read_declaration(folder)
        if known.to_plain() != grid.to_plain():
            raise UserError(f"{folder} holds another placement; give this one another --name.")
        return list(dict.fromkeys([*commands, command]))
    new = not folder.exists()
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        write_declaration(folder, grid, Judging(target=atlas.target, last=atlas.last), [command])
    except UserError:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return [command]


def _execute(folder: Path, part: Grid, executor: Executor, *, quiet: bool) -> list[Run]:
    """Execute what is left of some cells, and read them.

    Raises:
        UserError: If one failed or diverged.
    """
    runs = read_cells(part, folder)
    if waiting(runs):
        more = f"the same command continues the placement in {folder}"
        execute_cells(part, folder, runs, executor, more, quiet=quiet)
        runs = read_cells(part, folder)
    lost = next((run for run in runs if run.status != "complete"), None)
    if lost is not None:
        why = f"{lost.status}: {lost.reason.rstrip('.')}"
        raise UserError(
            f"{lost.variant} under {lost.scenario}, seed {lost.seed}, {why}; a placement needs every run."
        )
    return runs
