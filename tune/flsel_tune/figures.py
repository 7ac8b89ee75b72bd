"""Pictures of a sweep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from flsel.report.style import save_figure
from flsel.runner.record import MetricsCsv
from flsel_tune.metric import Metric
from flsel_tune.results import best_trials, mean_rows
from flsel_tune.study import Study
from flsel_tune.trial import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The last ones are drawn on top.
_STYLES: dict[str, dict[str, Any]] = {
    "stopped or failed": {"color": "#AAAAAA", "linewidth": 0.8, "zorder": 2},
    "complete": {"color": "#56B4E9", "linewidth": 0.8, "zorder": 2.2},
    "first": {"color": "#000000", "linewidth": 1.6, "linestyle": "--", "zorder": 2.4},
    "best": {"color": "#D55E00", "linewidth": 1.8, "zorder": 2.6},
}


def draw(study: Study, job: Job) -> list[Path]:
    """Draw what the trials so far allow: history, importance, slices, parallel coordinates, curves.

    Args:
        study: The sweep's study.
        job: What its trials have in common.

    Returns:
        The files, in ``figures/`` of the sweep's folder.
    """
    folder = Path(job.folder) / "figures"
    folder.mkdir(exist_ok=True)
    complete = study.trials(TrialState.COMPLETE)
    drawn = {}
    if study.trials():
        drawn["curves"] = _curves(study, job)
    if complete:
        drawn |= {
            name: make(study.study, job.metrics) for name, make in _PLOTS.items() if _has(name, complete)
        }
    written = []
    for name, figure in drawn.items():
        save_figure(figure, folder / f"{name}.png", crop=True)
        written.append(folder / f"{name}.png")
    return written


def _has(name: str, complete: Sequence[FrozenTrial]) -> bool:
    """Tell whether there is enough for a picture; importance compares trials that differ."""
    searched = [trial for trial in complete if trial.params]
    if name == "history":
        return True
    if name in ("slices", "parallel"):
        return bool(searched)
    differ = {tuple(sorted(trial.params.items(), key=str)) for trial in searched}
    return len(differ) > 2 and len({tuple(trial.values) for trial in searched}) > 1


def _plot(function: str) -> Callable[[optuna.Study, Sequence[Metric]], Figure]:
    def make(study: optuna.Study, metrics: Sequence[Metric]) -> Figure:
        import matplotlib
        from optuna.visualization import matplotlib as plots

        matplotlib.use("Agg")
        # With one metric Optuna takes its values itself, and draws the best one so far.
        target = None if len(metrics) == 1 else _first
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: Any = getattr(plots, function)(study, target=target, target_name=metrics[0].text)
        axes = made.flat[0] if hasattr(made, "flat") else made
        figure: Figure = axes.figure
        figure.set_size_inches(max(8.0, 3.2 * len(figure.axes)), 5.0)
        if function == "plot_parallel_coordinate":  # Optuna draws the best trials in white on grey
            axes.set_facecolor("white")
            for lines in axes.collections:
                lines.set_cmap("viridis")
        return figure

    return make


_PLOTS = {
    "history": _plot("plot_optimization_history"),
    "slices": _plot("plot_slice"),
    "parallel": _plot("plot_parallel_coordinate"),
    "importance": _plot("plot_param_importances"),
}


def _first(trial: FrozenTrial) -> float:
    return float(trial.values[0])


def _curves(study: Study, job: Job) -> Figure:
    """Draw every trial's learning curve, and the metric as it was reported; a dot marks an early stop."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    source, best = job.metrics[0].source, {trial.number for trial in best_trials(study)[:1]}
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    learning, reported = figure.subplots(1, 2)
    for trial in study.trials():
        style = _style(trial, best)
        for axes, points in ((learning, _learning(trial, job)), (reported, trial.intermediate_values)):
            if points:
                axes.plot(list(points), list(points.values()), **style)
                if trial.state is not TrialState.COMPLETE:
                    axes.plot(*list(points.items())[-1], marker="o", markersize=4, color=style["color"])
    for axes, label in ((learning, source), (reported, f"{job.metrics[0].text}, as reported")):
        axes.set_xlabel("communication round")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    handles = [Line2D([], [], label=name, **style) for name, style in _STYLES.items()]
    learning.legend(handles=handles, fontsize="small")
    return figure


def _style(trial: FrozenTrial, best: set[int]) -> dict[str, Any]:
    if trial.number in best:
        return _STYLES["best"]
    if trial.number == 0:
        return _STYLES["first"]
    return _STYLES["complete" if trial.state is TrialState.COMPLETE else "stopped or failed"]


def _learning(trial: FrozenTrial, job: Job) -> dict[int, float]:
    """Return the metric's column by round, the mean over the seeds."""
    files = (job.trial_folder(trial.number) / f"seed{seed}" / "metrics.csv" for seed in job.seeds)
    rows = mean_rows([MetricsCsv(file).rows() for file in files])
    return {int(row["round"]): row[job.metrics[0].source] for row in rows}
