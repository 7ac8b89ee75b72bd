"""Learning curves of all trials of a sweep, over communication rounds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from flsel.metrics import METRICS
from flsel.report.style import GREY, LIGHT, ORANGE, PANEL_INCHES, SKY, legend_below, tidy, whole_ticks
from flsel.runner.record import MetricsCsv
from flsel_tune.figures.points import Point
from flsel_tune.metric import Metric
from flsel_tune.results import mean_rows
from flsel_tune.trial import SweepJob

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = list[dict[str, float]]

# The last ones are drawn on top.
_STYLES: dict[str, dict[str, Any]] = {
    "stopped or failed": {"color": LIGHT, "linewidth": 0.8, "zorder": 2},
    "complete": {"color": SKY, "linewidth": 0.9, "zorder": 2.2},
    "first": {"color": "black", "linewidth": 1.6, "linestyle": "--", "zorder": 2.4},
    "best": {"color": ORANGE, "linewidth": 1.9, "zorder": 2.6},
}


def curves_figure(found: Sequence[Point], job: SweepJob) -> Figure:
    """Draw each metric's column, and beside it the metric where that is made of the column.

    Curves are means over the seeds; a dot marks where a trial was stopped or failed.

    Args:
        found: The trials.
        job: What they have in common.
    """
    from matplotlib.figure import Figure

    both = [(metric, made) for metric in job.metrics for made in (False, True)]
    panels = [(metric, made) for metric, made in both if not (made and metric.how == "last")]
    width, height = PANEL_INCHES
    figure = Figure(figsize=(1.3 * width * len(panels), 1.2 * height), layout="constrained")
    axes = list(figure.subplots(1, len(panels), squeeze=False).flat)
    histories = {point.number: _histories(point.number, job) for point in found}
    for panel, (metric, made) in zip(axes, panels, strict=True):
        for point in found:
            history = histories[point.number]
            _curve(panel, point, _reported(history, metric, job) if made else _column(history, metric))
        panel.set_ylabel(f"{metric.label} so far" if made else METRICS[metric.source].axis())
        panel.set_xlabel("communication round")
        whole_ticks(panel.xaxis)
        tidy(panel)
    legend_below(figure, axes)
    return figure


def _curve(axes: Axes, point: Point, drawn: dict[int, float]) -> None:
    if not drawn:
        return
    kind = _kind(point)
    shown = axes.get_legend_handles_labels()[1]
    style = _STYLES[kind]
    axes.plot(list(drawn), list(drawn.values()), label=None if kind in shown else kind, **style)
    if not point.complete:
        axes.plot(*list(drawn.items())[-1], marker="o", markersize=4, color=GREY, zorder=2.1)


def _kind(point: Point) -> str:
    if point.best:
        return "best"
    if point.number == 0:
        return "first"
    return "complete" if point.complete else "stopped or failed"


def _histories(number: int, job: SweepJob) -> list[History]:
    """Return the evaluations of a trial's runs, one list for each seed that has any."""
    files = (job.trial_folder(number) / f"seed{seed}" / "metrics.csv" for seed in job.seeds)
    return [rows for rows in (MetricsCsv(file).rows() for file in files) if rows]


def _column(histories: list[History], metric: Metric) -> dict[int, float]:
    return {int(row["round"]): row[metric.source] for row in mean_rows(histories)}


def _reported(histories: list[History], metric: Metric, job: SweepJob) -> dict[int, float]:
    """Return the metric of the rounds so far, at the rounds of the reports."""
    reached = min((int(rows[-1]["round"]) for rows in histories), default=0)
    found = {}
    for point in {*range(job.report_every, reached + 1, job.report_every), *([reached] if reached else [])}:
        so_far = [[row for row in rows if row["round"] <= point] for rows in histories]
        found[point] = fmean(metric.value(rows, job.rounds) for rows in so_far)
    return dict(sorted(found.items()))
