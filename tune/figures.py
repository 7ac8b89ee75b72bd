"""Pictures of a sweep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from flsel.record import MetricsCsv
from flsel.report.curves import save_figure
from tune.metric import Metric
from tune.study import Study
from tune.trial import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {TrialState.COMPLETE: "#0072B2", TrialState.PRUNED: "#999999", TrialState.FAIL: "#D55E00"}


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
        drawn["curves"] = _curves(study.trials(), job)
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: Any = getattr(plots, function)(study, target=_first, target_name=metrics[0].text)
        axes = made.flat[0] if hasattr(made, "flat") else made
        figure: Figure = axes.figure
        axes.set_facecolor("white")
        for lines in axes.collections:  # Optuna draws the best trials in white
            lines.set_cmap("viridis")
        figure.set_size_inches(max(8.0, 3.2 * len(figure.axes)), 5.0)
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


def _curves(trials: Sequence[FrozenTrial], job: Job) -> Figure:
    """Draw the metric's column of every run over the rounds; a dot marks where a trial was stopped."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(8, 5), layout="tight")
    axes = figure.subplots()
    source = job.metrics[0].source
    for trial in trials:
        colour = _COLOURS.get(trial.state, "#009E73")
        for seed in job.seeds:
            rows = MetricsCsv(job.trial_folder(trial.number) / f"seed{seed}" / "metrics.csv").rows()
            points = [(row["round"], row[source]) for row in rows if source in row]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, linewidth=1, alpha=0.7)
                if trial.state is not TrialState.COMPLETE:
                    axes.plot(*points[-1], marker="o", markersize=4, color=colour)
    axes.set_xlabel("communication round")
    axes.set_ylabel(source)
    axes.grid(alpha=0.3)
    named = {state.name.lower(): colour for state, colour in _COLOURS.items()}
    axes.legend(handles=[Line2D([], [], color=colour, label=name) for name, colour in named.items()])
    return figure
