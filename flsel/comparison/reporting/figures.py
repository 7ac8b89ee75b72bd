"""A comparison's figures for papers: the page's charts, set in one column's width with a legend, by
vl-convert.

A chart is declared once, in :mod:`flsel.comparison.reporting.result_charts`. Here its placeholders are
filled, and it is drawn as PDF, SVG or PNG without a browser.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.judging.measures import titles
from flsel.comparison.reporting.chart import (
    COST,
    FORMAT,
    JOINS,
    MEASURE,
    MOST_IN_PANEL,
    SHARE,
    WHAT,
    Chart,
    Spec,
)
from flsel.comparison.reporting.chart_data import chart_data
from flsel.comparison.reporting.draw import UndrawnError, drawn
from flsel.comparison.reporting.result_charts import charts
from flsel.errors import UserError
from flsel.files import home, make_folder, write_atomic
from flsel.files.escaping import chart_text
from flsel.report.style import looks
from flsel.runner.cost_axes import COST_AXES

_LOG = logging.getLogger("flsel")

FORMATS = ("pdf", "svg", "png")
COLUMN = 228
"""Width of a column of a paper in points: 3.17 inches, LaTeX's own ``article`` in two columns."""
_LETTER, _BESIDE, _SPACING = 4.5, 60, 12
"""Points of a letter, of the numbers and the title of an axis, and between panels."""
_PAPER = ("curves", "cost", "pairs", "arrivals", "survival", "ranks", "profile")
_NAMES = {"survival": "target"}
_NAMED = ("pairs", "arrivals", "ranks")  # have a line for each variant with its name, and need no legend
_CONFIG: Spec = {
    "font": "Helvetica, Arial, sans-serif",
    "axis": {"labelFontSize": 8, "titleFontSize": 8, "titleFontWeight": "normal", "gridColor": "#dddddd"},
    "legend": {"labelFontSize": 8, "title": None, "orient": "bottom", "symbolOpacity": 1},
    "header": {"labelFontSize": 8, "title": None},
    "view": {"stroke": None},
    "point": {"size": 25},
    "line": JOINS,
}


@dataclass(frozen=True)
class Drawing:
    """A figure: shows itself in a notebook, and saves itself as PDF, SVG or PNG.

    Attributes:
        spec: Its Vega-Lite specification, with data.
    """

    spec: Mapping[str, Any]

    def render(self, kind: str) -> bytes:
        """Return the figure in a format: ``pdf``, ``svg`` or ``png``.

        Raises:
            UserError: If there is no such format, vl-convert is missing, or it cannot draw the figure.
        """
        if kind not in FORMATS:
            raise UserError(f"format must be one of {', '.join(FORMATS)}, got {kind!r}.")
        (made,) = drawn([chart_text(self.spec)], [kind])
        if isinstance(made, UndrawnError):
            raise made
        return made[0]

    def save(self, path: str | PathLike[str]) -> Path:
        """Save the figure in the format of the path's suffix, whole or not at all.

        Raises:
            UserError: If there is no such format, or the file cannot be written.
        """
        file = home(path)
        content = self.render(file.suffix.removeprefix("."))
        write_atomic(file, content)
        return file

    def _repr_svg_(self) -> str:
        return self.render("svg").decode()


def draw_chart(
    analysis: Analysis, name: str, *, cost: str | None = None, measure: str | None = None
) -> Drawing:
    """Draw a chart of the page for a paper; over several scenarios a panel for each.

    Args:
        analysis: The comparison.
        name: The chart, such as ``curves``.
        cost: Horizontal axis, where it shows a cost; None is the comparison's own where that is not
            rounds, else rounds for curves, and bytes.
        measure: ``accuracy``, ``loss`` or the name of the runs' score, where it shows one; None is the
            score.

    Raises:
        UserError: If there is no such cost or measure, or nothing to draw.
    """
    usual = "rounds" if name == "curves" else "bytes"
    cost = cost or (usual if analysis.options.cost == "rounds" else analysis.options.cost)
    _check("cost", cost, COST_AXES)
    measure = measure or analysis.options.score.name
    _check("measure", measure, analysis.curves)
    data = chart_data(analysis)
    legend = name not in _NAMED
    found = {chart.name: chart for chart in charts(analysis, looks(analysis.variants), data, legend=legend)}
    if name not in found and name in ("ranks", "profile"):
        raise UserError("ranks need two variants, and two scenarios that have them all.")
    if name not in found:
        raise UserError(f"there is nothing to draw in {name}: runs lack what it shows.")
    return Drawing(_whole(found[name], data, analysis, {"cost": cost, "measure": measure}))


def write_charts(analysis: Analysis, folder: Path) -> list[Path]:
    """Write every figure that there is something for, in each format; what cannot be drawn is told.

    Raises:
        UserError: If a file cannot be written.
    """
    make_folder(folder)
    known = {chart.name for chart in charts(analysis, looks(analysis.variants), chart_data(analysis))}
    names = [name for name in _PAPER if name in known]
    specs = [chart_text(draw_chart(analysis, name).spec) for name in names]
    written, missing = list[Path](), dict[str, UndrawnError]()
    for name, made in zip(names, drawn(specs, FORMATS), strict=True):
        file = _NAMES.get(name, name)
        if isinstance(made, UndrawnError):
            missing[file] = made
        else:
            written += _write(made, folder / file)
    if missing:
        why = next(iter(missing.values()))
        _LOG.warning("%s lacks the figures %s: %s", folder, ", ".join(missing), why)
    return written


def _write(contents: Sequence[bytes], stem: Path) -> list[Path]:
    """Write a figure in each format, unless it is there already: a PDF has other bytes each time."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in FORMATS]
    there = FORMATS.index("svg")
    if not (all(path.is_file() for path in paths) and paths[there].read_bytes() == contents[there]):
        for path, content in zip(paths, contents, strict=True):
            write_atomic(path, content)
    return paths


def _whole(
    chart: Chart,
    data: Mapping[str, Sequence[Mapping[str, Any]]],
    analysis: Analysis,
    names: Mapping[str, str],
) -> Spec:
    """Return a chart's whole specification: filled, with its data, in panels where there are several."""
    rows = [dict(row) for row in data[chart.name]]
    if chart.name == "cost":
        there = [row for row in rows if names["cost"] in row]
        rows = _front(there, names["cost"], analysis.options.score.gains)
    known = titles(analysis.curves)
    words = {COST: known[names["cost"]], MEASURE: known[names["measure"]], WHAT: ""}
    marks = {COST: names["cost"], MEASURE: names["measure"], FORMAT: COST_AXES[names["cost"]].format}
    marks[SHARE] = "%" if names["measure"] == "accuracy" else "~r"
    filled = fill(chart.spec, marks, words)
    panel, rows = _panel(chart, rows, analysis)
    beside = _BESIDE if chart.name not in _NAMED else 18 + min(140, _LETTER * _longest(rows))
    columns = 1 if panel is None or chart.name in _NAMED else 2
    width = (COLUMN - beside - _SPACING * (columns - 1)) / columns
    inner = {"width": width, **filled, "height": _height(filled.get("height"), rows)}
    datasets = {"intervals": list(data.get("intervals", []))} if chart.name == "pairs" else {}
    shape: Spec = inner
    if panel is not None:
        facet = {"field": panel, "type": "nominal", "title": None, "header": {"labelLimit": width + 10}}
        shape = {
            "facet": facet, "columns": columns, "spacing": _SPACING, "spec": inner,
            "resolve": {"axis": dict.fromkeys("xy" if columns == 1 else "x", "independent")},
        }  # fmt: skip
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json", "background": "white", "padding": 2,
        "data": {"values": rows}, "datasets": datasets,
        # The legend shows marks, or strokes where lines have no marks.
        "config": {
            **_CONFIG,
            # Below names there is room for a title that is longer than the axis.
            **({"axisX": {"titleAnchor": "end"}} if chart.name in _NAMED else {}),
            "legend": {
                **_CONFIG["legend"], "symbolStrokeWidth": 2 * (chart.name == "profile"),
                "columns": max(1, min(3, int(COLUMN // (26 + _LETTER * _longest(rows))))),
            },
        },
        **shape,
    }  # fmt: skip


def _longest(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the letters of the longest name of a variant."""
    return max((len(str(row["variant"])) for row in rows), default=0)


def _panel(
    chart: Chart, rows: list[dict[str, Any]], analysis: Analysis
) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the field that tells panels apart, if there are several, and the rows with it."""
    if len({row["scenario"] for row in rows}) > 1:
        return "scenario", rows
    others = [name for name in analysis.variants if name != analysis.options.baseline]
    by_row = "step" in str(chart.spec.get("height"))  # has a line for each variant
    if by_row or len(others) < MOST_IN_PANEL:
        return None, rows
    size = -(-len(others) // -(-len(others) // (MOST_IN_PANEL - 2)))
    parts = [others[at : at + size] for at in range(0, len(others), size)]
    group = {name: f"{part[0]} to {part[-1]}" for part in parts for name in part}
    base = [row for row in rows if row["variant"] == analysis.options.baseline]
    found = [{**row, "panel": group[row["variant"]]} for row in rows if row["variant"] in group]
    return "panel", found + [{**row, "panel": name} for name in dict.fromkeys(group.values()) for row in base]


def _height(height: Any, rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the height in points: by lines where a chart has one for each variant."""
    if isinstance(height, Mapping):
        return 18 * max(1, len({row["variant"] for row in rows})) + 6
    return 130


def fill(spec: Spec, names: Mapping[str, str], words: Mapping[str, str]) -> Spec:
    """Replace the placeholders of a specification, as the page's script does.

    Args:
        spec: The specification.
        names: Values by placeholder.
        words: What titles say, by placeholder.
    """
    text = json.dumps(spec)
    for mark, title in words.items():
        text = text.replace(f'"title": {json.dumps(mark)}', f'"title": {json.dumps(title)}')
    for mark, name in names.items():
        text = text.replace(mark, name)
    filled: Spec = json.loads(text)
    return filled


def _front(rows: list[dict[str, Any]], cost: str, gains: float) -> list[dict[str, Any]]:
    """Mark the rows of the Pareto front of their scenario."""

    def beaten(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        spent, gained = other[cost] - row[cost], gains * (other["score"] - row["score"])
        there = other["scenario"] == row["scenario"]
        return bool(there and spent <= 0 and gained >= 0 and (spent < 0 or gained > 0))

    return [{**row, "front": not any(beaten(row, other) for other in rows)} for row in rows]


def _check(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise UserError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
