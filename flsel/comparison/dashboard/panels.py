"""The panels of a dashboard; they name what runs log (:mod:`flsel.runner.trackers.values`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import wandb_workspaces.reports.v2 as wr

from flsel.comparison.dashboard.workspaces_internals import setting
from flsel.runner.cost_axes import COST_AXES

CHART = "flsel-participation"
COUNTS = "selection/counts"
STEPS = {axis.step: axis for axis in COST_AXES.values() if axis.overview}
# Means over fewer runs than there are would be wrong and look right; W&B's own limit is ten.
MOST_RUNS = 1000


def curve(metric: str, step: str, title: str) -> wr.LinePlot:
    """Draw a logged metric, a line for each variant, over one of :data:`STEPS`."""
    return wr.LinePlot(
        title=title,
        x=step,
        y=[metric],
        title_x=STEPS[step].title,
        groupby=wr.Config("variant"),
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        smoothing_type="none",
        max_runs_to_show=MOST_RUNS,
    )


def bar(metric: str, title: str) -> wr.BarPlot:
    """Compare a final value between variants."""
    return wr.BarPlot(
        title=title,
        metrics=[metric],
        orientation="h",
        groupby=wr.Config("variant"),
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        max_runs_to_show=MOST_RUNS,
    )


def scatter(cost: str, quality: str, title: str) -> wr.ScatterPlot:
    """Draw a final value over a cost, a point for each run."""
    return wr.ScatterPlot(title=title, x=wr.SummaryMetric(cost), y=wr.SummaryMetric(quality))


def coordinates(settings: Iterable[str], results: Iterable[str]) -> wr.ParallelCoordinatesPlot:
    """Draw a line for each run through its settings, by dotted key, and its final values."""
    columns = [setting(key) for key in settings]
    columns += [wr.ParallelCoordinatesPlotColumn(metric=wr.SummaryMetric(name)) for name in results]
    return wr.ParallelCoordinatesPlot(title="Settings and results", columns=columns)


def participation(entity: str) -> list[Any]:
    """Draw how often each client took part; the heat map is the custom chart of a W&B user or team."""
    return [
        wr.CustomChart(
            query={"summaryTable": {"tableKey": COUNTS}},
            chart_name=f"{entity}/{CHART}" if entity else CHART,
            chart_fields={"client": "client", "count": "count"},
            chart_strings={"title": "Rounds that a client took part in"},
        ),
        wr.WeavePanelSummaryTable(table_name=COUNTS),
        curve("selection/distinct", "round", "Clients that took part at least once"),
        curve("selection/variance", "round", "Variance of the selection counts"),
    ]


def participation_chart() -> dict[str, Any]:
    """Return the heat map of participation as W&B's custom charts want it: Vega-Lite with their fields."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": "${string:title}",
        "data": {"name": "wandb"},
        # The runs of several scenarios have one name.
        "transform": [{"calculate": "datum.id ? datum.name + ' ' + datum.id : datum.name", "as": "run"}],
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {"field": "${field:client}", "type": "ordinal", "title": "client"},
            "y": {"field": "run", "type": "nominal", "title": None},
            "color": {
                "field": "${field:count}",
                "type": "quantitative",
                "title": "rounds",
                "scale": {"scheme": "viridis"},
            },
        },
    }


def placed(panels: list[Any]) -> list[Any]:
    """Lay panels out in two columns of the report's grid, which is 24 wide."""
    for at, panel in enumerate(panels):
        panel.layout = wr.Layout(x=at % 2 * 12, y=at // 2 * 8, w=12, h=8)
    return panels
