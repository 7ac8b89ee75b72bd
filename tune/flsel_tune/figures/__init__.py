"""Pictures of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flsel.report.style import save_figure
from flsel_tune.figures.curves import curves_figure
from flsel_tune.figures.points import Point, points
from flsel_tune.figures.scores import history_figure, importance_figure, pareto_figure
from flsel_tune.figures.settings import parallel_figure, slices_figure
from flsel_tune.study import Study
from flsel_tune.trial import SweepJob

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_FOR_IMPORTANCE = 10
"""Complete trials below which importances would mostly be chance."""


def draw(study: Study, job: SweepJob) -> list[Path]:
    """Draw what the trials so far allow.

    Args:
        study: The sweep's study.
        job: What its trials have in common.

    Returns:
        The files, in ``figures/`` of the sweep's folder; a picture of an earlier state that the trials no
        longer allow is removed.
    """
    folder = Path(job.folder) / "figures"
    folder.mkdir(exist_ok=True)
    written = []
    for name, make in _wanted(study, job).items():
        path = folder / f"{name}.png"
        if make is None:
            path.unlink(missing_ok=True)
        else:
            save_figure(make(), path)
            written.append(path)
    return written


def _wanted(study: Study, job: SweepJob) -> dict[str, Callable[[], Figure] | None]:
    """Say how each picture is made, or that it would show nothing."""
    found = points(study, len(job.metrics))
    measured = [point for point in found if point.values]
    searched = [point for point in measured if point.params]
    complete = [point for point in measured if point.complete]
    return {
        "curves": (lambda: curves_figure(found, job)) if found else None,
        "pareto": (lambda: pareto_figure(complete, job)) if complete and len(job.metrics) > 1 else None,
        "history": (lambda: history_figure(measured, job)) if measured else None,
        "slices": (lambda: slices_figure(searched, job)) if searched else None,
        "parallel": (lambda: parallel_figure(searched, job)) if searched else None,
        "importance": (lambda: importance_figure(study, job)) if _differ(complete) else None,
    }


def _differ(complete: list[Point]) -> bool:
    """Tell whether there are enough trials, of different settings and results, to weigh settings."""
    searched = [point for point in complete if point.params]
    settings = {tuple(sorted(point.params.items(), key=str)) for point in searched}
    return min(len(searched), len(settings)) >= LEAST_FOR_IMPORTANCE and len({p.values for p in searched}) > 1
