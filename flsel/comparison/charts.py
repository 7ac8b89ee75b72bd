"""The page's charts as Vega-Lite specifications; the page's script fills in data and the chosen cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flsel.comparison.measures import COSTS
from flsel.comparison.results import Analysis
from flsel.report.style import Look

Spec = dict[str, Any]
# The script puts the chosen cost, measure and selector in the place of these.
COST, MEASURE, FORMAT = "$cost", "$measure", "$format"
_RULE = {"type": "rule", "strokeDash": [4, 3], "color": "#767676"}


@dataclass(frozen=True)
class Chart:
    """One figure of the page.

    Attributes:
        name: Name of its data.
        title: Heading.
        about: How to read it, one or two sentences.
        spec: Vega-Lite specification without data.
        one: Whether it shows one variant at a time.
    """

    name: str
    title: str
    about: str
    spec: Spec
    one: bool = False


def charts(analysis: Analysis, looks: Mapping[str, Look], data: Mapping[str, Any]) -> list[Chart]:
    """Return the charts that have data, in the page's order."""
    colour = _colour(looks)
    listed = (
        Chart(
            "curves",
            "Learning curves",
            "Mean over seeds; the band is their range.",
            _curves(looks, colour),
        ),
        Chart(
            "cost",
            "Accuracy against cost",
            "Mean over seeds of the accuracy at the end and of what was spent, with its 95 % interval. The "
            "line joins the variants that none beats in both.",
            _cost(looks, colour),
        ),
        Chart(
            "pairs",
            f"Difference to {analysis.options.baseline}, seed by seed",
            "Every dot is a seed, the bar the mean's 95 % interval. Right of zero is better.",
            _pairs(looks, colour),
        ),
        Chart(
            "arrivals",
            _goal(analysis, "Rounds to"),
            "Kaplan-Meier's median with its 95 % interval; at the right edge are those that had not arrived.",
            _arrivals(looks, colour),
        ),
        Chart(
            "survival",
            _goal(analysis, "Share of runs that reached"),
            "Runs that never get there keep the curve below 100 %.",
            _survival(looks, colour),
        ),
        Chart(
            "ranks",
            "Mean ranks over settings",
            "1 is best. Variants left of the dashed line are not told apart from the best (Nemenyi, 5 %).",
            _ranks(looks, colour),
        ),
        Chart(
            "participation",
            "Who takes part when",
            "Share of rounds in which clients took part, first seed; clients from the fewest examples (top) "
            "to the most.",
            _participation(),
            one=True,
        ),
        Chart(
            "clients",
            "Participation against label entropy",
            "One mark a client, first seed; larger marks have more examples.",
            _clients(looks, colour),
        ),
        Chart(
            "partition",
            "Who has which labels",
            "Share of a client's examples with each label, first seed.",
            _partition(),
        ),
        Chart(
            "available",
            "Clients that can be reached",
            "Clients available in a round, first seed.",
            _available(),
        ),
    )
    return [chart for chart in listed if chart.name in data]


def _goal(analysis: Analysis, words: str) -> str:
    if analysis.target is None:
        return words
    last = analysis.options.last
    smooth = f" (running mean of {last})" if last > 1 else ""
    return f"{words} {100 * analysis.target.accuracy:g} %{smooth}"


def _colour(looks: Mapping[str, Look]) -> Spec:
    scale = {"domain": list(looks), "range": [look.colour for look in looks.values()]}
    return {"field": "variant", "type": "nominal", "scale": scale, "legend": None}


def _shape(looks: Mapping[str, Look]) -> Spec:
    scale = {"domain": list(looks), "range": [look.shape for look in looks.values()]}
    return {"field": "variant", "type": "nominal", "scale": scale, "legend": None}


def _dash(looks: Mapping[str, Look]) -> Spec:
    scale = {"domain": list(looks), "range": [list(look.dash) or [1, 0] for look in looks.values()]}
    return {"field": "variant", "type": "nominal", "scale": scale, "legend": None}


def _quantitative(field: str, title: str, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, **more}


def _tips(*pairs: tuple[str, str]) -> list[Spec]:
    found = [{"field": "variant", "type": "nominal", "title": "variant"}]
    for field, title in pairs:
        found.append({"field": field, "type": "quantitative", "title": title, "format": ".4~g"})
    return found


def _variants(looks: Mapping[str, Look]) -> Spec:
    axis = {"labelLimit": 110, "title": None, "ticks": False, "domain": False}
    return {"field": "variant", "type": "nominal", "axis": axis, "sort": list(looks)}


def _curves(looks: Mapping[str, Look], colour: Spec) -> Spec:
    y = _quantitative(MEASURE, MEASURE, scale={"zero": False})
    tips = _tips(
        (COST, COST),
        (MEASURE, MEASURE),
        (f"{MEASURE}_low", "lowest seed"),
        (f"{MEASURE}_high", "highest seed"),
    )
    return {
        "height": 320,
        "encoding": {"x": _quantitative(COST, COST, axis={"format": FORMAT}), "color": colour},
        "layer": [
            {"mark": {"type": "area", "opacity": 0.16},
             "encoding": {"y": {**y, "field": f"{MEASURE}_low"}, "y2": {"field": f"{MEASURE}_high"}}},
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": y, "strokeDash": _dash(looks)}},
            {"transform": [{"filter": "datum.marked"}], "mark": {"type": "point", "filled": True, "size": 60},
             "encoding": {"y": y, "shape": _shape(looks)}},
            {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 0.001},
             "encoding": {"y": y, "tooltip": tips}},
        ],
    }  # fmt: skip


def _cost(looks: Mapping[str, Look], colour: Spec) -> Spec:
    y = _quantitative("accuracy", "test accuracy", scale={"zero": False}, axis={"format": "%"})
    x = _quantitative(COST, COST, axis={"format": FORMAT}, scale={"zero": False, "padding": 20})
    tips = _tips((COST, COST), ("accuracy", "accuracy"), ("low", "low"), ("high", "high"))
    return {
        "height": 280,
        "encoding": {"x": x},
        "layer": [
            {"transform": [{"filter": "datum.front"}],
             "mark": {"type": "line", "interpolate": "step-after", "color": "#767676", "strokeDash": [3, 3]},
             "encoding": {"y": y}},
            {"mark": {"type": "rule", "strokeWidth": 2},
             "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour}},
            {"mark": {"type": "point", "filled": True, "size": 110},
             "encoding": {"y": y, "color": colour, "shape": _shape(looks), "tooltip": tips}},
        ],
    }  # fmt: skip


def _pairs(looks: Mapping[str, Look], colour: Spec) -> Spec:
    x = _quantitative("difference", "difference in test accuracy (points)")
    tips = _tips(("seed", "seed"), ("difference", "points"))
    return {
        "height": {"step": 34},
        "encoding": {"y": _variants(looks)},
        "layer": [
            {"data": {"values": [{"zero": 0}]}, "mark": _RULE,
             "encoding": {"x": {"field": "zero", "type": "quantitative"}, "y": None}},
            {"data": {"name": "intervals"}, "mark": {"type": "rule", "strokeWidth": 5, "opacity": 0.35},
             "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": colour}},
            {"data": {"name": "intervals"}, "mark": {"type": "tick", "thickness": 3, "size": 20},
             "encoding": {"x": x, "color": colour}},
            {"mark": {"type": "point", "filled": True, "size": 55},
             "encoding": {"x": x, "color": colour, "shape": _shape(looks), "tooltip": tips}},
        ],
    }  # fmt: skip


def _arrivals(looks: Mapping[str, Look], colour: Spec) -> Spec:
    x = _quantitative("median", "communication rounds")
    tips = [
        *_tips(("median", "median"), ("low", "low"), ("high", "high")),
        {"field": "reached", "title": "reached"},
    ]
    return {
        "height": {"step": 34},
        "encoding": {"y": _variants(looks), "color": colour},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.6},
             "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}}},
            {"mark": {"type": "point", "filled": True, "size": 90},
             "encoding": {"x": x, "shape": _shape(looks), "tooltip": tips}},
        ],
    }  # fmt: skip


def _survival(looks: Mapping[str, Look], colour: Spec) -> Spec:
    y = _quantitative("reached", "share of runs", axis={"format": "%"}, scale={"domain": [0, 1]})
    tips = _tips(("rounds", "rounds"), ("reached", "share"))
    return {
        "height": 220,
        "encoding": {"x": _quantitative("rounds", "communication rounds"), "y": y, "color": colour},
        "layer": [
            {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
             "encoding": {"strokeDash": _dash(looks)}},
            {"mark": {"type": "point", "filled": True, "size": 50},
             "encoding": {"shape": _shape(looks), "tooltip": tips}},
        ],
    }  # fmt: skip


def _ranks(looks: Mapping[str, Look], colour: Spec) -> Spec:
    x = _quantitative("rank", "mean rank (1 is best)", scale={"zero": False})
    limit = {"field": "limit", "type": "quantitative", "aggregate": "min"}
    return {
        "height": {"step": 34},
        "layer": [
            {"mark": _RULE, "encoding": {"x": limit}},
            {"mark": {"type": "point", "filled": True, "size": 110},
             "encoding": {"x": x, "y": _variants(looks), "color": colour, "shape": _shape(looks),
                          "tooltip": _tips(("rank", "mean rank"))}},
        ],
    }  # fmt: skip


def _heat(x: Spec, y: Spec, title: str, tips: Sequence[Spec]) -> Spec:
    shades = {"scheme": "viridis"}
    return {
        "height": 300,
        "mark": {"type": "rect"},
        "encoding": {
            "x": x, "y": y, "tooltip": list(tips),
            "color": {"field": "share", "type": "quantitative", "title": title, "scale": shades,
                      "legend": {"format": "%", "orient": "bottom", "gradientLength": 200}},
        },
    }  # fmt: skip


def _participation() -> Spec:
    axis = {"labelOverlap": True, "format": ".0f", "labelAngle": 0}
    x = {"field": "round", "type": "ordinal", "title": "communication round", "axis": axis}
    y = {
        "field": "client",
        "type": "ordinal",
        "title": "clients by size",
        "axis": {"labels": False, "ticks": False},
    }
    tips = [
        {"field": "round", "title": "about round", "format": ".0f", "type": "quantitative"},
        {"field": "share", "title": "share of rounds", "format": ".0%", "type": "quantitative"},
    ]
    return _heat(x, y, "share of rounds", tips)


def _partition() -> Spec:
    axis = {"labelOverlap": True, "labelAngle": 0}
    x = {"field": "client", "type": "ordinal", "title": "client", "axis": axis}
    y = {"field": "label", "type": "ordinal", "title": "label", "axis": {"labelOverlap": True}}
    tips = [
        {"field": "client", "title": "client", "type": "quantitative"},
        {"field": "label", "title": "label", "type": "quantitative"},
        {"field": "share", "title": "share", "format": ".0%", "type": "quantitative"},
    ]
    return _heat(x, y, "share of the client's examples", tips)


def _clients(looks: Mapping[str, Look], colour: Spec) -> Spec:
    size = {"field": "examples", "type": "quantitative", "title": "examples", "legend": None,
            "scale": {"range": [20, 180]}}  # fmt: skip
    tips = _tips(
        ("client", "client"), ("times", "times selected"), ("examples", "examples"), ("entropy", "entropy")
    )
    return {
        "height": 260,
        "mark": {"type": "point", "filled": True, "opacity": 0.75},
        "encoding": {
            "x": _quantitative("entropy", "label entropy of the client (nats)"),
            "y": _quantitative("times", "times selected"),
            "color": colour, "shape": _shape(looks), "size": size, "tooltip": tips,
        },
    }  # fmt: skip


def _available() -> Spec:
    return {
        "height": 160,
        "mark": {"type": "line", "color": "#0072B2", "interpolate": "step-after"},
        "encoding": {
            "x": _quantitative("round", "communication round"),
            "y": _quantitative("available", "clients available"),
        },
    }


def costs_in(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the costs that a chart's rows have, and their words."""
    return {name: words for name, words in COSTS.items() if rows and name in rows[0]}
