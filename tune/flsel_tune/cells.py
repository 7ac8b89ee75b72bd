"""Play a comparison's cells side by side with Ray, as the trials of a sweep are played."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flsel.comparison.config import CompareConfig
from flsel.comparison.grid import Cell, Grid
from flsel.comparison.play import Sources, play_cell, read_cells, waiting
from flsel.comparison.reading import Run, read_run, write_failure
from flsel.config.parser import parse_settings
from flsel.data.population import Source
from flsel.errors import Interrupted, UserError
from flsel.runner.interrupt import Interrupt
from flsel_tune.cluster import cluster, daemon_lives
from flsel_tune.guard import die, tell
from flsel_tune.shared import Packed, pack, unpack

_POLL_SECONDS = 1.0


def play(grid: Grid, folder: Path, wanted: CompareConfig, ended: Callable[[Run], None]) -> None:
    """Play what is left of a comparison, several cells at a time.

    A cell whose process dies is gone on with by another from its checkpoint, ``retries`` times; after that it
    counts as failed.

    Args:
        grid: The comparison.
        folder: Its folder; on a cluster it must be shared.
        wanted: How many at a time, and what each needs.
        ended: Told of every cell that ended.

    Raises:
        UserError: If no cluster answers, or none of its machines has room for a run.
        Interrupted: If a signal stopped it; cells go on from their checkpoints.
    """
    tell("work", str(folder))
    folder = folder.resolve()
    packed = _packed(grid)
    with cluster(wanted, 0 if packed is None else packed.size):
        _loop(grid, folder, wanted, packed, ended)


def _loop(
    grid: Grid, folder: Path, wanted: CompareConfig, packed: Packed | None, ended: Callable[[Run], None]
) -> None:
    # Ray reads its settings from the environment when it is imported; cluster() has set them.
    import ray

    options: dict[str, Any] = {
        "num_cpus": wanted.cpus,
        "num_gpus": wanted.gpus,
        "max_retries": wanted.retries,
    }
    if wanted.memory is not None:
        options["memory"] = wanted.memory * 2**30
    task = ray.remote(**options)(_play_one)
    shared: Any = None if packed is None else ray.put(packed)
    left, running = waiting(read_cells(grid, folder)), dict[Any, Run]()
    with Interrupt() as interrupt:
        while left or running:
            while left and len(running) < wanted.max_concurrent:
                run = left.pop(0)
                running[task.remote(grid, folder, Cell(run.variant, run.setting, run.seed), shared)] = run
            done, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
            for reference in done:
                _finish(reference, running.pop(reference), ended)
            if interrupt.requested:
                for reference in running:
                    ray.cancel(reference, force=True)
                raise Interrupted(f"stopped with {len(left) + len(running)} runs left")


def _finish(reference: Any, run: Run, ended: Callable[[Run], None]) -> None:
    import ray

    try:
        ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        # A full disk, say, or a signal to the worker; Ray's error has the worker's traceback for a text.
        if isinstance(error.cause, UserError | Interrupted):
            raise error.cause from None
        raise  # flsel's own
    except ray.exceptions.RayError as error:
        its_own = (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError)
        if not isinstance(error, its_own) or not daemon_lives():
            die(f"Ray or its daemon failed ({type(error).__name__})")
            raise UserError("Ray's daemon died; go on with flsel compare --resume and its folder.") from error
        run.folder.mkdir(parents=True, exist_ok=True)
        why = "its process died, perhaps out of memory (more often than retries allows)"
        write_failure(run.folder, "failed", why)
    ended(read_run(run.folder, variant=run.variant, setting=run.setting, seed=run.seed))


def _play_one(grid: Grid, folder: Path, cell: Cell, packed: Packed | None) -> None:
    logging.getLogger("flsel").setLevel(logging.WARNING)
    config = grid.run_config(cell, folder)
    load = Sources().get if packed is None else lambda config: unpack(packed)
    play_cell(config, folder / cell.folder, load)


def _packed(grid: Grid) -> Packed | None:
    """Load the dataset that all cells share, if they do; a generated one depends on the seed."""
    config = parse_settings(grid.config)
    changes = [key for variant in grid.variants for key in variant.changes]
    changes += [key for setting in grid.settings for key in setting.changes]
    if config.data.name == "synthetic" or any(key.split(".")[0] in ("data", "clients") for key in changes):
        return None
    source: Source = Sources().get(config)
    return pack(source)
