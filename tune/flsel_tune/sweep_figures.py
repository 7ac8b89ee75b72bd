"""A sweep's figures, drawn by Optuna."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState

from flsel.errors import UserError
from flsel.files import make_folder, write_atomic
from flsel_tune.metric import SweepObjective
from flsel_tune.study import Study
from flsel_tune.trial import SweepJob

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_FOR_IMPORTANCE = 10
"""Complete trials below which importances would mostly be noise."""


def write_figures(study: Study, job: SweepJob) -> list[Path]:
    """Draw the figures that the trials so far allow.

    Args:
        study: The sweep's study.
        job: What its trials have in common.

    Returns:
        The files in ``figures/`` of the sweep's folder. Old figures that the trials no longer allow are
        removed.
    """
    folder = Path(job.folder) / "figures"
    make_folder(folder)
    for old in folder.glob("*.png"):
        old.unlink()
    written = []
    for name in figure_names(study, job.metrics):
        path = folder / f"{name}.png"
        _save(draw_study(study, job.metrics, name), path)
        written.append(path)
    return written


def figure_names(study: Study, metrics: Sequence[SweepObjective]) -> list[str]:
    """Name the figures that the trials so far allow."""
    return [name for name, _ in _wanted(study, metrics)]


def draw_study(study: Study, metrics: Sequence[SweepObjective], name: str) -> Figure:
    """Draw one figure.

    Args:
        study: The sweep's study.
        metrics: What it optimises.
        name: One of :func:`figure_names`.

    Raises:
        UserError: If the trials allow no such figure.
    """
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    wanted = dict(_wanted(study, metrics))
    if name not in wanted:
        raise UserError(
            f"there is no figure {name} of these trials; there are {', '.join(wanted) or 'none'}."
        )
    # Optuna draws with pyplot: its figures are neither shown nor kept, and its style stays here.
    with warnings.catch_warnings(), mpl.rc_context(), plt.ioff():
        warnings.simplefilter("ignore")
        axes = wanted[name]()
        figure: Figure = getattr(axes, "flat", [axes])[0].figure
        plt.close(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    # Optuna leaves no room for long names; a tight box does.
    write_atomic(path, lambda file: figure.savefig(file, dpi=150, bbox_inches="tight"))


def _wanted(study: Study, metrics: Sequence[SweepObjective]) -> list[tuple[str, Callable[[], Any]]]:
    """List the figures by name, with what draws each one."""
    from optuna.visualization import matplotlib as plots

    trials = study.study
    complete = study.trials(TrialState.COMPLETE)
    searched = [trial for trial in complete if trial.params]
    wanted: list[tuple[str, Callable[[], Any]]] = []
    if len(metrics) == 1 and any(trial.intermediate_values for trial in study.trials()):
        wanted.append(("curves", lambda: plots.plot_intermediate_values(trials)))
    if len(metrics) in (2, 3) and complete:
        wanted.append(("pareto", lambda: plots.plot_pareto_front(trials)))
    for index, metric in enumerate(metrics):
        name = f"-{index + 1}" if len(metrics) > 1 else ""
        of: dict[str, Any] = {"target_name": metric.label}
        if len(metrics) > 1:
            of["target"] = _value(index)
        if complete:
            wanted.append((f"history{name}", _call(plots.plot_optimization_history, trials, of)))
        if searched:
            wanted.append((f"slices{name}", _call(plots.plot_slice, trials, of)))
            wanted.append((f"parallel{name}", _call(plots.plot_parallel_coordinate, trials, of)))
        if _differ(searched):
            # The evaluator minimises; importances are shares, which have no direction.
            against = of | {"target": _badness(index, metric), "evaluator": PedAnovaImportanceEvaluator()}
            wanted.append((f"importance{name}", _call(plots.plot_param_importances, trials, against)))
    return wanted


def _call(plot: Callable[..., Any], study: optuna.Study, settings: dict[str, Any]) -> Callable[[], Any]:
    return lambda: plot(study, **settings)


def _value(index: int) -> Callable[[FrozenTrial], float]:
    return lambda trial: float(trial.values[index])


def _badness(index: int, metric: SweepObjective) -> Callable[[FrozenTrial], float]:
    sign = -1.0 if metric.mode == "max" else 1.0
    return lambda trial: sign * float(trial.values[index])


def _differ(searched: list[FrozenTrial]) -> bool:
    """Tell whether there are enough trials with different settings and results to rank settings."""
    settings = {tuple(sorted(trial.params.items(), key=str)) for trial in searched}
    results = {tuple(trial.values) for trial in searched}
    return min(len(searched), len(settings)) >= LEAST_FOR_IMPORTANCE and len(results) > 1
