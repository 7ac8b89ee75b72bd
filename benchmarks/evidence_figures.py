"""Curves of the evidence: mean over seeds and their range, one panel a column of the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from evidence_cells import Experiment
from evidence_measures import evaluations
from evidence_tables import Finished

from flsel.report.style import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours with line styles, so that the lines can be told apart without colour.
STYLES = (
    ("#000000", "-"), ("#E69F00", "--"), ("#56B4E9", "-."), ("#009E73", ":"),
    ("#D55E00", "-"), ("#0072B2", "--"), ("#CC79A7", "-."), ("#999999", ":"),
)  # fmt: skip
_PANELS_WIDE = 3
_PANEL_INCHES = (4.4, 3.3)
_LEGEND_INCHES = 1.5
_NAMES = {"test/accuracy": "test accuracy", "test/loss": "test loss (nats)"}


def draw(experiment: Experiment, finished: Finished, path: Path) -> None:
    """Draw the curves of the finished runs of each cell, and save them as a PNG."""
    cells = [cell for cell in experiment.cells if cell in finished and experiment.draws(cell)]
    columns = list(dict.fromkeys(cell.column for cell in cells))
    rows = list(dict.fromkeys(cell.row for cell in cells))
    styles = dict(zip(rows, STYLES, strict=False))
    figure, panels = new_figure(len(columns))
    for axes, column in zip(panels, columns, strict=True):
        for cell in (cell for cell in cells if cell.column == column):
            rounds, values = curves(list(finished[cell].values()), experiment.metric, experiment.window)
            band(axes, rounds, values, label=cell.row, style=styles[cell.row])
        _finish_panel(axes, experiment, column)
    legend(figure, panels)
    save_figure(figure, path)


def curves(folders: Sequence[Path], metric: str, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return evaluated rounds ``[E]`` and the metric's running means ``[seeds, E]``, as far as all runs went.

    A point is the mean of the last ``window`` evaluations, the first ones of as many as there are.
    """
    tables = [evaluations(folder) for folder in folders]
    length = min(map(len, tables))
    values = np.array([[row[metric] for row in rows[:length]] for rows in tables])
    sums = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    last = np.arange(1, length + 1)
    first = np.maximum(0, last - window)
    rounds = np.array([row["round"] for row in tables[0][:length]])
    return rounds, (sums[:, last] - sums[:, first]) / (last - first)


def new_figure(panels: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels."""
    from matplotlib.figure import Figure

    wide = min(panels, _PANELS_WIDE)
    high = -(-panels // wide)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(max(wide, 1.4) * width, high * height + 0.5), layout="constrained")
    return figure, [figure.add_subplot(high, wide, place + 1) for place in range(panels)]


def band(axes: Axes, x: np.ndarray, values: np.ndarray, *, label: str, style: tuple[str, str]) -> None:
    """Draw the mean of ``values [seeds, X]`` with the seeds' range behind it."""
    colour, line = style
    axes.plot(x, values.mean(axis=0), color=colour, linestyle=line, linewidth=1.5, label=label)
    if len(values) > 1:
        axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.12, linewidth=0)


def legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put one legend of all panels' labels below them."""
    columns = int(figure.get_figwidth() / _LEGEND_INCHES)
    entries = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(dict(zip(labels, handles, strict=True)))
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=min(len(entries), columns),
        frameon=False, fontsize=9,
    )  # fmt: skip


def tidy(axes: Axes) -> None:
    """Give a panel a light grid and no box."""
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _finish_panel(axes: Axes, experiment: Experiment, column: str) -> None:
    target = experiment.target.get(column)
    if target is not None:
        axes.axhline(target, color="#555555", linewidth=0.9, linestyle=(0, (5, 3)), label="target")
    if experiment.limits is not None:
        axes.set_ylim(*experiment.limits)
    axes.set_title(column, fontsize=10)
    axes.set_xlabel("communication round")
    axes.set_ylabel(_NAMES[experiment.metric])
    axes.margins(x=0)
    tidy(axes)
