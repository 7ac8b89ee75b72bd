"""Play a comparison's cells in this process; what is finished is never repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from flsel.comparison.grid import FILE, Cell, Grid
from flsel.comparison.lockstep import Playing, play_together
from flsel.comparison.reading import Run, read_run
from flsel.comparison.standing import Standing
from flsel.config import RunConfig
from flsel.config.describe import describe, fingerprint
from flsel.config.parser import parse_settings
from flsel.data.population import Source
from flsel.data.sources import load_source
from flsel.errors import Interrupted, UserError, located
from flsel.runner.build import build

# Most cells that are played round by round beside each other: all are in memory.
_MOST = 8


class Sources:
    """The last dataset that was loaded, kept while cells go on with the same one."""

    def __init__(self) -> None:
        self._key: object = None
        self._source: Source | None = None

    def get(self, config: RunConfig) -> Source:
        """Load a run's dataset; a generated one depends on the seed.

        Raises:
            UserError: If it is missing, unreadable or malformed.
        """
        key = (config.data, config.clients, config.seed if config.data.name == "synthetic" else None)
        if self._source is None or key != self._key:
            self._source = load_source(config.data, clients=config.clients, seed=config.seed)
            self._key = key
        return self._source


def check(grid: Grid, folder: Path, sources: Sources) -> None:
    """Build every variant and every setting once, so that what does not fit is said before a run starts.

    Raises:
        UserError: If something does not fit; the message names the cell.
    """
    seed, first = grid.seeds[0], (grid.variants[0].name, grid.settings[0].name)
    for setting in grid.settings:
        for variant in grid.variants:
            cell = Cell(variant.name, setting.name, seed)
            if both := setting.changes.keys() & variant.changes.keys():
                raise UserError(
                    f"{variant.name} sets {min(both)}, which --grid varies; set it in one of them."
                )
            try:
                config = grid.run_config(cell, folder)
                if variant.name == first[0] or setting.name == first[1]:
                    build(config, sources.get(config))
            except UserError as error:
                raise UserError(f"{cell}: {error}") from error.__cause__


def read_cells(grid: Grid, folder: Path) -> list[Run]:
    """Read every cell as it lies there.

    Raises:
        UserError: If one was played with other settings than the comparison declares.
    """
    found, described = [], dict[tuple[str, str], dict[str, Any]]()
    for cell in grid.cells():
        place = folder / cell.folder
        try:
            run = read_run(place, variant=cell.variant, setting=cell.setting, seed=cell.seed)
        except UserError as error:
            said = str(error).rstrip(".")
            raise UserError(
                f"{cell}: {said}: put it back, or remove {place} to play the run again."
            ) from error
        kind = cell.variant, cell.setting
        if run.settings and kind not in described:
            described[kind] = describe(grid.run_config(cell, folder))
        if run.settings and not _played_with(run, described[kind] | {"seed": cell.seed}):
            raise UserError(
                f"{place} was played with other settings than {folder / FILE} declares; restore that file, "
                "or remove the run's folder to play it again."
            )
        found.append(run)
    return found


def _played_with(run: Run, declared: dict[str, Any]) -> bool:
    """Tell whether a run has the declared settings; those that are newer than it have defaults."""
    expected = fingerprint(declared)
    with suppress(TypeError):  # what no run has written
        if fingerprint(dict(run.settings)) == expected:
            return True
    with located(str(run.folder / "config.yaml")):
        return fingerprint(describe(parse_settings(dict(run.settings)))) == expected


def waiting(runs: Sequence[Run]) -> list[Run]:
    """Return the cells to play: a run that diverged would diverge again, one that failed may be mended."""
    return [run for run in runs if run.status in ("missing", "unfinished", "failed")]


def play(
    grid: Grid, folder: Path, sources: Sources, ended: Callable[[Run], None], round_ended: Callable[[], None]
) -> None:
    """Play what is left: cell by cell, or round by round beside each other where their clients share stacks.

    Args:
        grid: The comparison.
        folder: Its folder.
        sources: Datasets at hand.
        ended: Told of every cell that ended.
        round_ended: Called after every round.

    Raises:
        UserError: If a file cannot be written.
        Interrupted: If a signal stopped it; its cells go on from their checkpoints.
    """
    standing = Standing(folder)
    runs = read_cells(grid, folder)
    begun = standing.begun(runs)
    others = [run for run in waiting(runs) if run not in begun]
    # A run that failed once is not played beside those that would have gone on without it.
    parts = (begun, *(_failed(others, failed) for failed in (False, True)))
    left = sum(map(len, parts))
    for part in parts:
        for cells in _stacks(part, grid, folder, sources, ended):
            left -= len(cells)
            if _play_stack(cells, standing, round_ended) and left:
                raise Interrupted(f"stopped with {left} runs left")


def _stacks(
    runs: Sequence[Run], grid: Grid, folder: Path, sources: Sources, ended: Callable[[Run], None]
) -> Iterator[list[Playing]]:
    """Yield runs, built, that are played beside each other."""
    together: list[Playing] = []
    for run in runs:
        config = grid.run_config(Cell(run.variant, run.setting, run.seed), folder)
        cell = Playing(run.folder, partial(_tell, ended, run))
        cell.build(config, sources.get)
        if together and (cell.kind != together[0].kind or len(together) == _MOST):
            yield together
            together = []
        together.append(cell)
        if cell.kind is None:
            yield together
            together = []
    if together:
        yield together


def _failed(runs: Sequence[Run], failed: bool) -> list[Run]:
    return [run for run in runs if (run.status == "failed") is failed]


def _play_stack(cells: Sequence[Playing], standing: Standing, round_ended: Callable[[], None]) -> bool:
    if len(cells) == 1:
        return play_together(cells, round_ended)
    stopped = play_together(cells, round_ended, standing.keep)
    standing.clear()
    return stopped


def _tell(ended: Callable[[Run], None], run: Run) -> None:
    ended(read_run(run.folder, variant=run.variant, setting=run.setting, seed=run.seed))


def play_cell(config: RunConfig, folder: Path, load: Callable[[RunConfig], Source]) -> None:
    """Play one run, or go on with it; how it failed is written down.

    Args:
        config: Its settings.
        folder: Its folder, created if missing.
        load: Loads the dataset.

    Raises:
        Interrupted: If a signal stopped it between rounds; its state is saved.
    """
    cell = Playing(folder)
    cell.build(config, load)
    play_together([cell])
