"""Choose the runs that a comparison needs next until its claims are decided, look by look.

This module asks for runs and never executes one. The caller executes a part before it asks for the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flsel.comparison.cells import read_cells
from flsel.comparison.comparison import settled
from flsel.comparison.grid import Grid
from flsel.comparison.judging.families import claims
from flsel.comparison.judging.settings import Judging, Options, Order, usual_baseline
from flsel.comparison.run_table import Run, complete
from flsel.errors import UserError
from flsel.files import write_atomic

ORDER_FILE = "pairs.json"


def options_of(grid: Grid, judging: Judging, folder: Path) -> Options:
    """Return how a comparison's runs are judged, with the order of the pairs so far.

    Raises:
        UserError: If the file of the pairs is damaged.
    """
    variants, scenarios = (tuple(item.name for item in items) for items in (grid.variants, grid.scenarios))
    kept = vars(judging) | {"baseline": judging.baseline or usual_baseline(variants)}
    order = read_order(folder) if judging.until_decided else {}
    return Options(**kept, variants=variants, scenarios=scenarios, order=order)


def parts(grid: Grid, folder: Path, judging: Judging, known: dict[Path, Run]) -> Iterator[Grid]:
    """Yield what is to be executed: at each look the baseline and the variants whose claims are undecided.

    A part that was executed before, as in a comparison that is resumed, is yielded again. The order of the
    pairs is kept at each look, so that a run that is repaired later changes no look.

    Args:
        grid: The whole comparison with all seeds up to the maximum.
        folder: Its folder.
        judging: How it is judged, with the rules of when claims are decided.
        known: As for :func:`flsel.comparison.cells.read_cells`.

    Raises:
        UserError: If a file is damaged or cannot be written.
    """
    options = options_of(grid, judging, folder)
    undecided = {(v, s) for v in options.variants for s in options.scenarios if v != options.baseline}
    for look in options.claim_design.looks:
        yield from _part(grid, options.baseline, undecided, look)
        runs = read_cells(grid, folder, known)
        if not complete(runs):
            continue
        found = claims(settled(runs, options))
        pairs = {(c.variant, c.scenario): c.order for c in found if c.kind == "mean"}
        # What is new stands behind what is known.
        order = {key: tuple(dict.fromkeys((*options.order.get(key, ()), *new))) for key, new in pairs.items()}
        options = replace(options, order=order)
        write_order(folder, order)
        undecided = {
            (claim.variant, scenario)
            for claim in found
            if claim.decision.claim == "undecided"
            for scenario in ((claim.scenario,) if options.each_scenario else options.scenarios)
        }
        if not undecided:
            return


def _part(grid: Grid, baseline: str, undecided: set[tuple[str, str]], look: int) -> Iterator[Grid]:
    """Yield the cells to execute up to a look: grids, one for the scenarios that need the same variants."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for scenario in grid.scenarios:
        names = tuple(v.name for v in grid.variants if (v.name, scenario.name) in undecided)
        if names:
            groups.setdefault(names, []).append(scenario.name)
    for names, scenarios in groups.items():
        yield replace(
            grid,
            variants=tuple(v for v in grid.variants if v.name == baseline or v.name in names),
            scenarios=tuple(s for s in grid.scenarios if s.name in scenarios),
            seeds=grid.seeds[:look],
        )


def read_order(folder: Path) -> Order:
    """Read the order of the pairs of every claim; empty where no look was taken.

    Raises:
        UserError: If the file is damaged.
    """
    file = folder / ORDER_FILE
    if not file.is_file():
        return {}
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        return {(v, s): tuple(map(int, seeds)) for v, s, seeds in plain}
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is damaged: restore it, or start a new comparison.") from error


def write_order(folder: Path, order: Order) -> None:
    """Keep the order of the pairs of every claim.

    Raises:
        UserError: If the file cannot be written.
    """
    plain = [[v, s, list(seeds)] for (v, s), seeds in order.items()]
    write_atomic(folder / ORDER_FILE, json.dumps(plain) + "\n")
