"""Play a comparison's cells in this process, one after the other; what is finished is never repeated."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from flsel.comparison.grid import FILE, Cell, Grid
from flsel.comparison.reading import FAILURE, Run, read_run, write_failure, write_labels
from flsel.config import RunConfig
from flsel.config.describe import describe, fingerprint
from flsel.data.population import Source
from flsel.data.sources import load_source
from flsel.errors import DivergedError, Interrupted, UserError
from flsel.runner.build import build
from flsel.runner.interrupt import Interrupt
from flsel.runner.session import Session

_LOG = logging.getLogger("flsel")


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
    found = []
    for cell in grid.cells():
        place = folder / cell.folder
        try:
            run = read_run(place, variant=cell.variant, setting=cell.setting, seed=cell.seed)
        except UserError as error:
            said = str(error).rstrip(".")
            raise UserError(
                f"{cell}: {said}: put it back, or remove {place} to play the run again."
            ) from error
        declared = describe(grid.run_config(cell, folder)) if run.settings else {}
        if fingerprint(declared) != fingerprint(dict(run.settings)):
            raise UserError(
                f"{place} was played with other settings than {folder / FILE} declares; restore that file, "
                "or remove the run's folder to play it again."
            )
        found.append(run)
    return found


def waiting(runs: Sequence[Run]) -> list[Run]:
    """Return the cells to play: a run that diverged would diverge again, one that failed may be mended."""
    return [run for run in runs if run.status in ("missing", "unfinished", "failed")]


def play(
    grid: Grid, folder: Path, sources: Sources, ended: Callable[[Run], None], round_ended: Callable[[], None]
) -> None:
    """Play what is left.

    Args:
        grid: The comparison.
        folder: Its folder.
        sources: Datasets at hand.
        ended: Told of every cell that ended.
        round_ended: Called after every round.

    Raises:
        UserError: If a file cannot be written.
        Interrupted: If a signal stopped it; the cell goes on from its checkpoint.
    """
    for run in waiting(read_cells(grid, folder)):
        cell = Cell(run.variant, run.setting, run.seed)
        play_cell(grid.run_config(cell, folder), run.folder, sources.get, round_ended)
        ended(read_run(run.folder, variant=run.variant, setting=run.setting, seed=run.seed))


def play_cell(
    config: RunConfig,
    folder: Path,
    load: Callable[[RunConfig], Source],
    round_ended: Callable[[], None] = lambda: None,
) -> None:
    """Play one run, or go on with it; how it failed is written down.

    Args:
        config: Its settings.
        folder: Its folder, created if missing.
        load: Loads the dataset.
        round_ended: Called after every round.

    Raises:
        Interrupted: If a signal stopped it between rounds; its state is saved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).unlink(missing_ok=True)
    try:
        session = Session(config, folder, build(config, load(config)))
        write_labels(folder, session.server.federation.labels.numpy())
        with session:
            if not session.finished:
                _loop(session, round_ended)
                session.end()
    except Interrupted:
        raise
    except DivergedError as error:
        write_failure(folder, "diverged", str(error))
    except UserError as error:
        write_failure(folder, "failed", str(error))
    except Exception as error:  # the selector or the model may be the user's own
        at = traceback.extract_tb(error.__traceback__)[-1]
        reason = " ".join(str(error).split())
        where = f"{Path(at.filename).name}, line {at.lineno}"
        write_failure(folder, "failed", f"{type(error).__name__}: {reason} ({where})")


def _loop(session: Session, round_ended: Callable[[], None]) -> None:
    every = session.config.output.checkpoint_every
    with Interrupt() as interrupt:
        while not session.server.finished:
            record = session.step()
            round_ended()
            due = record.completed // every > record.round // every
            if session.server.finished or interrupt.requested or due:
                session.save()
            if interrupt.requested and not session.server.finished:
                raise Interrupted(f"stopped after round {session.server.round}")
