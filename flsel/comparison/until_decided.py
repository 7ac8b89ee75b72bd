"""Choose the runs that a comparison needs next until its claims are decided, look by look.

This module asks for runs and never executes one. The caller executes a part before it asks for the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flsel.comparison.cells import read_cells
from flsel.comparison.comparison import shortest_last, usual_baseline
from flsel.comparison.comparison_file import Judging
from flsel.comparison.grid import Grid
from flsel.comparison.judging.claims import Claim, Order, Sequential, claims, order_of
from flsel.comparison.run_table import Run, complete
from flsel.errors import UserError
from flsel.files import write_atomic

ORDER_FILE = "pairs.json"


def sequential(grid: Grid, judging: Judging, folder: Path) -> Sequential | None:
    """Return how claims of a comparison are decided; None where its seeds are fixed.

    Raises:
        UserError: If the file of the pairs is damaged.
    """
    if judging.until_decided is None:
        return None
    variants, scenarios = (tuple(item.name for item in items) for items in (grid.variants, grid.scenarios))
    return Sequential(judging.until_decided, variants, scenarios, read_order(folder), judging.target)


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
    how = sequential(grid, judging, folder)
    if how is None:
        raise ValueError("the comparison has a fixed number of seeds")
    baseline = judging.baseline or usual_baseline([v.name for v in grid.variants])
    undecided = {(v.name, s.name) for v in grid.variants for s in grid.scenarios if v.name != baseline}
    for look in how.design.looks:
        yield from _part(grid, baseline, undecided, look)
        runs = read_cells(grid, folder, known)
        done = complete(runs)
        if not done:
            continue
        found = claims(runs, baseline, shortest_last(done, judging.last), how)
        how = replace(how, order=_appended(how.order, order_of(found)))
        write_order(folder, how.order)
        undecided = _undecided(found, how)
        if not undecided:
            return


def _appended(known: Order, found: Order) -> Order:
    """Return the known order with the pairs that are new behind it."""
    return {key: tuple(dict.fromkeys((*known.get(key, ()), *seeds))) for key, seeds in found.items()}


def _undecided(found: Sequence[Claim], how: Sequential) -> set[tuple[str, str]]:
    """Return the cells, by variant and scenario, whose claims are undecided."""
    return {
        (claim.variant, scenario)
        for claim in found
        if claim.decision.claim == "undecided"
        for scenario in ((claim.scenario,) if how.rules.each_scenario else how.scenarios)
    }


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
