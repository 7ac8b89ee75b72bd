"""Execute cells that are left, while a table shows how they stand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flsel.comparison.cells import jobs_left, read_again
from flsel.comparison.comparison_display import ComparisonProgress
from flsel.comparison.grid import Grid
from flsel.comparison.run_table import Run
from flsel.errors import Interrupted
from flsel.execution.executor import Executor, Listener
from flsel.execution.job import Job
from flsel.execution.on_ray.cluster_cleanup import resume_by


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
