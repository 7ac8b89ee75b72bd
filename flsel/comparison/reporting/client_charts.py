"""The page's charts of clients: participation, their data, and what selectors estimate about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flsel.comparison.reporting.chart import RULE, WHAT, Chart, Encodings, Spec, quantitative, tips
from flsel.report.style import BLUE, SHADES

# What the map of colours begins with, for cells that were left out because they are zero.
_ZERO = "#440154"
_GROUPS = "Fifths of the clients by"
_RELATIVE = "1 is a client's mean participation; mean over seeds."


def client_charts(e: Encodings, data: Mapping[str, Any]) -> list[Chart]:
    """Return the charts of clients that have data, in the page's order."""
    by_size = _axis("client", "clients by size", labels=False)
    rounds, client = _axis("round", "communication round"), _axis("client", "client")
    row, column = (_axis(field, "clients by label", labels=False) for field in ("row", "column"))
    value = quantitative("value", WHAT)
    share = quantitative("share", "share of the client's examples", format="%")
    listed = [
        Chart(
            "participation", "Who takes part when",
            "Share of rounds in which clients took part, first seed; clients from the fewest examples (top) "
            "to the most.",
            _heat(rounds, by_size, quantitative("share", "share of rounds", format="%"), zero=True), one=True,
        ),
        Chart(
            "entropies", "Participation by label entropy", f"{_GROUPS} label entropy. {_RELATIVE}",
            _groups(e, "label entropy of the clients (nats)"),
        ),
        Chart(
            "sizes", "Participation by size", f"{_GROUPS} number of examples. {_RELATIVE}",
            _groups(e, "examples of the clients"),
        ),
        Chart(
            "estimates", "Estimated against true label entropy",
            "One mark a client, first seed, at the end. What matters is that they rise from left to "
            "right, not their scale.",
            _estimates(e),
        ),
        Chart(
            "beliefs", "What the selector knows of every client",
            "First seed; clients from the fewest examples (top) to the most. Empty where nothing is known.",
            _heat(rounds, by_size, value, zero=False), one=True,
        ),
        Chart(
            "relations", "What the selector knows between clients",
            "First seed, at the end; clients in the order of their most frequent label: a block on the "
            "diagonal is clients with the same one.",
            _heat(row, column, value, zero=False), one=True,
        ),
        Chart(
            "visits", "Visits at every position of the cycle",
            "How often each client was chosen as the first, second, ... of a path, first seed.",
            _heat(_axis("position", "position in the cycle"), client, value, zero=True), one=True,
        ),
        Chart(
            "partition", "Who has which labels", "Share of a client's examples with each label, first seed.",
            _heat(client, _axis("label", "label"), share, zero=True),
        ),
        Chart("available", "Available clients", "Clients available in a round, first seed.", _available()),
    ]  # fmt: skip
    return [chart for chart in listed if chart.name in data]


def _axis(field: str, title: str, *, labels: bool = True) -> Spec:
    """Encode the lines or columns of a heat map."""
    axis = {
        "labelOverlap": "greedy", "labelSeparation": 8, "labelAngle": 0, "format": ".0f", "ticks": labels,
        "labels": labels,
    }  # fmt: skip
    return {"field": field, "type": "ordinal", "title": title, "axis": axis}


def _heat(x: Spec, y: Spec, value: Spec, *, zero: bool) -> Spec:
    """Draw a map of colours; with ``zero`` they begin at zero, and cells that are left out are zero."""
    percent = value.get("format") == "%"
    colour = {
        "field": value["field"], "type": "quantitative", "title": value["title"],
        "scale": {"scheme": SHADES, **({"domainMin": 0} if zero else {})},
        "legend": {"orient": "bottom", "gradientLength": 200, "titleLimit": 400,
                   "format": "%" if percent else ".3~g"},
    }  # fmt: skip
    shown = [quantitative(axis["field"], axis["title"], format=".0f") for axis in (x, y)]
    shown.append({**value, "format": ".0%" if percent else ".4~g"})
    return {
        "height": 300,
        "view": {"fill": _ZERO} if zero else {},
        "mark": {"type": "rect"},
        "encoding": {"x": x, "y": y, "tooltip": shown, "color": colour},
    }


def _groups(e: Encodings, title: str) -> Spec:
    x = quantitative("at", title, scale={"zero": False})
    y = quantitative("share", "times selected, relative to the mean")
    shown = tips(("at", title), ("share", "relative to the mean"))
    return {
        "height": 260,
        "encoding": {"x": x, "y": y, "color": e.colour},
        "layer": [
            {"data": {"values": [{"one": 1}]}, "mark": RULE,
             "encoding": {"y": {"field": "one", "type": "quantitative"}, "x": None, "color": None}},
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"strokeDash": e.dash}},
            {"mark": {"type": "point", "filled": True, "size": 70},
             "encoding": {"shape": e.shape, "tooltip": shown}},
        ],
    }  # fmt: skip


def _estimates(e: Encodings) -> Spec:
    shown = tips(("client", "client"), ("true", "true (nats)"), ("estimated", "estimated (nats)"))
    return {
        "height": 260,
        "mark": {"type": "point", "filled": True, "opacity": 0.75},
        "encoding": {
            "x": quantitative("true", "true label entropy of the client (nats)"),
            "y": quantitative("estimated", "estimated label entropy (nats)", scale={"zero": False}),
            "color": e.colour, "shape": e.shape, "tooltip": shown,
        },
    }  # fmt: skip


def _available() -> Spec:
    return {
        "height": 160,
        "mark": {"type": "line", "color": BLUE, "interpolate": "step-after"},
        "encoding": {
            "x": quantitative("round", "communication round"),
            "y": quantitative("available", "clients available"),
        },
    }
