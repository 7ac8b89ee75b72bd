"""The page's charts of results, and all of its charts in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flsel.comparison.judging import formatting
from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.reporting.chart import (
    COST,
    FORMAT,
    MEASURE,
    RULE,
    SHARE,
    Chart,
    Encodings,
    Spec,
    quantitative,
    tips,
)
from flsel.comparison.reporting.client_charts import client_charts
from flsel.comparison.reporting.client_data import POINTS
from flsel.comparison.run_table import complete
from flsel.metrics import Score
from flsel.report.style import GREY_LINE, Style
from flsel.runner.cost_axes import COST_AXES, CostAxis


def charts(
    analysis: Analysis, looks: Mapping[str, Style], data: Mapping[str, Any], *, legend: bool = False
) -> list[Chart]:
    """Return the charts that have data, in the page's order."""
    e = Encodings(looks, legend)
    target = analysis.target
    goal = "the target" if target is None else formatting.goal(target, analysis.options.last)
    score = analysis.options.score
    axis, level = COST_AXES[analysis.options.cost], f"{100 * analysis.options.level:g} %"
    listed = [
        Chart(
            "curves", "Learning curves",
            f"Mean over seeds. The band is the middle half of the seeds (quartiles).{_thinned(analysis)}",
            _curves(e),
        ),
        Chart(
            "cost", f"{score.name[0].upper()}{score.name[1:]} against cost",
            f"Mean over seeds of the {score.name} at the end, with its {level} interval, and of what was "
            "spent. Variants of equal cost are drawn side by side. The line is the Pareto front.",
            _cost(e, score),
        ),
        _pairs_chart(analysis, e, f"{axis.label} to {goal}"),
        Chart(
            "arrivals", f"{axis.label.capitalize()} to {goal}",
            f"Median over all runs, with its {level} interval from six seeds on. At the right edge the "
            "median was not reached.",
            _arrivals(e, axis),
        ),
        Chart(
            "survival", f"Share of runs that reached {goal}",
            "Runs that never get there keep the curve below 100 %.",
            _survival(e, axis),
        ),
        Chart(
            "ranks", "Mean ranks over scenarios",
            "1 is best. Variants left of a dashed line do not differ significantly from the best (exchanges "
            "within seeds). Where there is no line, ranks are described and not tested.",
            _ranks(e),
        ),
        Chart(
            "profile", "Performance profiles",
            "Share of all runs, over all scenarios, that end "
            f"{'above' if score.better == 'max' else 'below'} "
            f"{'an accuracy' if score.is_share else f'a value of {score.words}'}.",
            _profile(e, score),
        ),
    ]  # fmt: skip
    return [chart for chart in (*listed, *client_charts(e, data)) if chart.name in data]


def _thinned(analysis: Analysis) -> str:
    """Say that lines leave evaluations out; nothing where they show all."""
    most = max(len(run.columns["round"]) for run in complete(analysis.runs))
    return f" Lines show {POINTS} of {most:,} evaluations." if most > POINTS else ""


def _curves(e: Encodings) -> Spec:
    y = quantitative(MEASURE, MEASURE, scale={"zero": False}, axis={"format": SHARE})
    shown = tips(
        (COST, COST),
        (MEASURE, MEASURE),
        (f"{MEASURE}_low", "lower quartile"),
        (f"{MEASURE}_high", "upper quartile"),
    )
    return {
        "height": 320,
        "encoding": {"x": quantitative(COST, COST, axis={"format": FORMAT}), "color": e.colour},
        "layer": [
            {"mark": {"type": "area", "opacity": 0.2},
             "encoding": {"y": {**y, "field": f"{MEASURE}_low"}, "y2": {"field": f"{MEASURE}_high"}}},
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": y, "strokeDash": e.dash}},
            {"transform": [{"filter": "datum.marked"}], "mark": {"type": "point", "filled": True, "size": 60},
             "encoding": {"y": y, "shape": e.shape}},
            {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 0.001},
             "encoding": {"y": y, "tooltip": shown}},
        ],
    }  # fmt: skip


def _cost(e: Encodings, score: Score) -> Spec:
    y = quantitative("score", score.words, scale={"zero": False}, axis={"format": _format(score)})
    x = quantitative(COST, COST, axis={"format": FORMAT}, scale={"zero": False, "padding": 20})
    shown = tips((COST, COST), ("score", score.name), ("low", "low"), ("high", "high"))
    beside = {"xOffset": {"expr": f"datum['beside_{COST}']"}}
    return {
        "height": 280,
        "encoding": {"x": x},
        "layer": [
            {"transform": [{"filter": "datum.front"}],
             "mark": {"type": "line", "interpolate": "step-after", "color": GREY_LINE, "strokeDash": [3, 3]},
             "encoding": {"y": y}},
            {"mark": {"type": "rule", "strokeWidth": 2, **beside},
             "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": e.colour}},
            {"mark": {"type": "point", "filled": True, "size": 110, **beside},
             "encoding": {"y": y, "color": e.colour, "shape": e.shape, "tooltip": shown}},
        ],
    }  # fmt: skip


def _format(score: Score) -> str:
    """Return how an axis of a score writes its numbers."""
    return "%" if score.is_share else "~r"


def _pairs_chart(analysis: Analysis, e: Encodings, cost: str) -> Chart:
    base, score = analysis.options.baseline, analysis.options.score
    side = "Right" if score.better == "max" else "Left"
    level = f"{100 * analysis.options.level:g} %"
    dots = f"Each dot is a seed. The bar is the {level} interval that decides."
    if analysis.deciding == analysis.main:
        unit = f" ({score.unit})" if score.unit else ""
        x = quantitative("difference", f"difference in {score.words}{unit}")
        spec = _pairs(e, x, 0, score.unit or "difference")
        return Chart(
            "pairs", f"Difference to {base}, seed by seed", f"{dots} {side} of zero is better.", spec
        )
    x = quantitative("difference", "ratio (logarithmic)", scale={"type": "log", "nice": False, "padding": 14})
    about = f"{dots} Left of one is better. Pairs with a run that never arrives are left out."
    title = f"{cost[0].upper()}{cost[1:]}: ratio to {base}, seed by seed"
    return Chart("pairs", title, about, _pairs(e, x, 1, "ratio"))


def _pairs(e: Encodings, x: Spec, same: float, unit: str) -> Spec:
    shown = tips(("seed", "seed"), ("difference", unit))
    return {
        "height": {"step": 34},
        "encoding": {"y": e.rows},
        "layer": [
            {"data": {"values": [{"same": same}]}, "mark": RULE,
             "encoding": {"x": {"field": "same", "type": "quantitative"}, "y": None}},
            {"data": {"name": "intervals"}, "mark": {"type": "rule", "strokeWidth": 5, "opacity": 0.35},
             "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": e.colour}},
            {"data": {"name": "intervals"}, "mark": {"type": "tick", "thickness": 3, "size": 20},
             "encoding": {"x": x, "color": e.colour}},
            {"mark": {"type": "point", "filled": True, "size": 55},
             "encoding": {"x": x, "color": e.colour, "shape": e.shape, "tooltip": shown}},
        ],
    }  # fmt: skip


def _arrivals(e: Encodings, axis: CostAxis) -> Spec:
    x = quantitative("median", axis.title, axis={"format": axis.format})
    shown = [
        *tips(("median", "median"), ("low", "low"), ("high", "high")),
        {"field": "reached", "title": "reached"},
    ]
    return {
        "height": {"step": 34},
        "encoding": {"y": e.rows, "color": e.colour},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.6},
             "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}}},
            {"mark": {"type": "point", "filled": True, "size": 90},
             "encoding": {"x": x, "shape": e.shape, "tooltip": shown}},
        ],
    }  # fmt: skip


def _survival(e: Encodings, axis: CostAxis) -> Spec:
    y = quantitative("reached", "share of runs", axis={"format": "%"}, scale={"domain": [0, 1]})
    shown = tips(("spent", axis.label), ("reached", "share"))
    x = quantitative("spent", axis.title, axis={"format": axis.format})
    return {
        "height": 220,
        "encoding": {"x": x, "y": y, "color": e.colour},
        "layer": [
            {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
             "encoding": {"strokeDash": e.dash}},
            {"mark": {"type": "point", "filled": True, "size": 50},
             "encoding": {"shape": e.shape, "tooltip": shown}},
        ],
    }  # fmt: skip


def _ranks(e: Encodings) -> Spec:
    x = quantitative("rank", "mean rank (1 is best)", scale={"zero": False, "padding": 14})
    limit = {"field": "limit", "type": "quantitative", "aggregate": "min"}
    return {
        "height": {"step": 34},
        "layer": [
            {"mark": RULE, "encoding": {"x": limit}},
            {"mark": {"type": "point", "filled": True, "size": 110},
             "encoding": {"x": x, "y": e.rows, "color": e.colour, "shape": e.shape,
                          "tooltip": tips(("rank", "mean rank"))}},
        ],
    }  # fmt: skip


def _profile(e: Encodings, score: Score) -> Spec:
    where = "above" if score.better == "max" else "below"
    y = quantitative("share", f"share of runs {where} it", axis={"format": "%"}, scale={"domain": [0, 1]})
    x = quantitative(
        "score", f"{score.words} at the end", axis={"format": _format(score)}, scale={"zero": False}
    )
    shown = tips(("score", score.name), ("share", "share"))
    return {
        "height": 220,
        "encoding": {"x": x, "y": y, "color": e.colour},
        "layer": [
            {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
             "encoding": {"strokeDash": e.dash, "tooltip": shown}},
        ],
    }  # fmt: skip
