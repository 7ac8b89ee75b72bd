"""The tables and the figure of ``growth.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
# What grows, the field that says how large, and a title.
ABOUT = {
    "clients": ("clients", "Clients (N)"),
    "cohort": ("cohort", "Clients a round (K)"),
    "parameters": ("parameters", "Parameters"),
}


def size(row: Row, about: str) -> float:
    """Return how large a cell is in what grows."""
    field = ABOUT[about][0]
    return float(row[field] if field == "parameters" else row["cell"][field])


def series(rows: Sequence[Row], about: str) -> dict[tuple[str, str], list[Row]]:
    """Group the finished cells by data and selector, small ones first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["cell"]["about"] == about and "failed" not in row:
            found.setdefault((row["cell"]["data"], row["cell"]["selector"]), []).append(row)
    return {key: sorted(part, key=lambda row: size(row, about)) for key, part in sorted(found.items())}


def lines(rows: Sequence[Row], about: str) -> list[list[str]]:
    """Return the rows of a table, and below them the cells that did not finish."""
    written = []
    for (data, selector), part in series(rows, about).items():
        for before, row in zip([None, *part[:-1]], part, strict=True):
            grown = ["", ""] if before is None else [_power(before, row, about, what) for what in _GROWS]
            written.append(
                [
                    data, selector, f"{size(row, about):,.0f}",
                    *(_time(row[f"{name}_seconds"]) for name in ("setup", "first", "round", "worst")),
                    _time(row["evaluation_seconds"]), f"{row['peak_gb']:.2f} GB", *grown,
                ]
            )  # fmt: skip
    for row in rows:
        cell = row["cell"]
        if cell["about"] == about and "failed" in row:
            written.append([cell["data"], cell["selector"], f"{cell['clients']:,}", row["failed"], *[""] * 7])
    return written


_GROWS = ("round_seconds", "memory")


def _power(before: Row, row: Row, about: str, what: str) -> str:
    """Return p of a growth like size^p between two cells; nothing where both are below what can be told."""
    sizes = [size(cell, about) for cell in (before, row)]
    if what == "memory":
        values = [cell["peak_gb"] - cell["imports_gb"] for cell in (before, row)]
        least = 0.05
    else:
        values, least = [cell[what] for cell in (before, row)], 0.002
    if min(values) <= 0 or max(values) < least:
        return ""
    return f"{math.log(values[1] / values[0]) / math.log(sizes[1] / sizes[0]):.2f}"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw processor time a round and peak memory against what grows, on logarithmic scales."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.fonttype"] = "none"  # letters as text, not as outlines
    figure = Figure(figsize=(10, 6), layout="constrained")
    panels = figure.subplots(2, 3, sharex="col", sharey="row")
    for column, about in enumerate(ABOUT):
        for (data, selector), part in series(rows, about).items():
            sizes = [size(row, about) for row in part]
            name = f"{selector}, {data}"
            style = {"marker": "o" if data == "synthetic" else "s", "markersize": 3.5, "label": name}
            panels[0][column].loglog(sizes, [row["round_seconds"] for row in part], **style)
            panels[1][column].loglog(sizes, [row["peak_gb"] for row in part], **style)
        panels[1][column].set_xlabel(ABOUT[about][1])
        if panels[0][column].lines:
            panels[0][column].legend(fontsize=6, frameon=False)
    panels[0][0].set_ylabel("processor time a round, s")
    panels[1][0].set_ylabel("peak memory, GB (imports 0.69)")
    for panel in panels.flat:
        panel.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
