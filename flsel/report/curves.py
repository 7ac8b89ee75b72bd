"""Learning curves of one run over communication rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flsel.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, float]]

# Okabe and Ito's colours, told apart by colour-blind readers; the line styles tell them apart in grey.
_SERIES = {
    "test": ("test", "#0072B2", "-"),
    "validation": ("validation", "#D55E00", "--"),
    "mean": ("clients, mean", "#009E73", "-."),
    "worst10": ("clients, worst 10 %", "#CC79A7", ":"),
}
_ACCURACY = {
    "test": "test/accuracy",
    "validation": "validation/accuracy",
    "mean": "client/accuracy_mean",
    "worst10": "client/accuracy_worst10",
}
_LOSS = {"test": "test/loss", "validation": "validation/loss", "mean": "client/loss_mean"}
_GREY = "#555555"
_MARKED_ROWS = 25
_LOG_RATIO = 50
_LEAST_ROUNDS = 2
_LEAST_ACCURACY_SPAN = 0.05
_PANEL_INCHES = (4.4, 3.6)
_DPI = 150


def curves_figure(
    metrics: Rows, *, title: str, target: float | None = None, counts: Sequence[int] | None = None
) -> Figure:
    """Draw accuracy and loss over communication rounds and, if given, how often clients were selected.

    Args:
        metrics: Rows of ``metrics.csv``, at least one.
        title: Title of the figure.
        target: Test accuracy in (0, 1] to mark, with the first evaluated round that reaches it.
        counts: How often each of the N clients was selected, ``[N]``.

    Returns:
        A Matplotlib figure that no pyplot state knows; save it with :func:`save_figure`.
    """
    from matplotlib.figure import Figure

    panels = 2 if counts is None else 3
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(panels * width, height), layout="constrained")
    axes = figure.subplots(1, panels)
    figure.suptitle(title, fontsize=11)
    _accuracy_panel(axes[0], metrics, target)
    _loss_panel(axes[1], metrics)
    if counts is not None:
        _participation_panel(axes[2], counts)
    _legend(figure, axes)
    return figure


def save_figure(figure: Figure, path: str | Path, *, crop: bool = False) -> None:
    """Save a figure as a PNG, whole or not at all; the same figure gives the same bytes.

    Args:
        figure: The figure.
        path: The file.
        crop: Fit the picture to what is drawn, for a figure that was laid out by somebody else.

    Raises:
        UserError: If the file cannot be written.
    """
    box = "tight" if crop else None
    write_atomic(
        path,
        lambda stream: figure.savefig(
            stream, format="png", dpi=_DPI, metadata={"Software": None}, bbox_inches=box
        ),
    )


def _accuracy_panel(axes: Axes, metrics: Rows, target: float | None) -> None:
    _curves(axes, metrics, _ACCURACY)
    axes.set_ylabel("accuracy")
    if target is not None:
        _mark_target(axes, metrics, target)
    axes.set_ylim(_widen(axes.get_ylim(), _LEAST_ACCURACY_SPAN))


def _mark_target(axes: Axes, metrics: Rows, target: float) -> None:
    reached = next((row["round"] for row in metrics if row.get("test/accuracy", 0.0) >= target), None)
    when = "not reached" if reached is None else f"round {reached}"
    axes.axhline(target, color=_GREY, linewidth=1, linestyle=(0, (5, 3)), label=f"target {target:g} ({when})")
    if reached is not None:
        axes.axvline(reached, color=_GREY, linewidth=0.8, linestyle=":")


def _loss_panel(axes: Axes, metrics: Rows) -> None:
    drawn = _curves(axes, metrics, _LOSS)
    axes.set_ylabel("loss (nats)")
    if drawn and min(drawn) > 0 and max(drawn) > _LOG_RATIO * min(drawn):
        axes.set_yscale("log")


def _curves(axes: Axes, metrics: Rows, keys: Mapping[str, str]) -> list[float]:
    drawn: list[float] = []
    for series, key in keys.items():
        points = [(row["round"], row[key]) for row in metrics if math.isfinite(row.get(key, math.nan))]
        if points:
            label, colour, style = _SERIES[series]
            marker = "o" if len(points) <= _MARKED_ROWS else None
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                linestyle=style,
                linewidth=1.6,
                marker=marker,
                markersize=3.5,
                label=label,
            )
            drawn += [value for _, value in points]
    axes.set_xlabel("communication round")
    axes.set_xlim(_widen(axes.get_xlim(), _LEAST_ROUNDS))
    _whole_ticks(axes.xaxis)
    _tidy(axes)
    return drawn


def _participation_panel(axes: Axes, counts: Sequence[int]) -> None:
    from matplotlib.patches import StepPatch

    ordered = sorted((int(count) for count in counts), reverse=True)
    mean = sum(ordered) / len(ordered)
    edges = [position + 0.5 for position in range(len(ordered) + 1)]
    # As axes.stairs() does, but for the limits: those of 100,000 steps take seconds, and are set below.
    axes.add_artist(StepPatch(ordered, edges, fill=True, color="#56B4E9"))
    axes.axhline(mean, color=_GREY, linewidth=1, linestyle="-.", label=f"mean {mean:.3g}")
    axes.set_xlabel(f"{len(ordered)} clients, most selected first")
    axes.set_ylabel("times selected")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1.08 * max(ordered[0], 1))
    _whole_ticks(axes.xaxis)
    _whole_ticks(axes.yaxis)
    _tidy(axes)


def _whole_ticks(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _widen(limits: tuple[float, float], least: float) -> tuple[float, float]:
    """Return limits at least ``least`` apart: a single point would be magnified without end."""
    low, high = limits
    pad = max(0.0, (least - (high - low)) / 2)
    return low - pad, high + pad


def _tidy(axes: Axes) -> None:
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    entries = {}
    for panel in axes:
        handles, labels = panel.get_legend_handles_labels()
        entries.update(
            {label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries}
        )
    if entries:
        figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=len(entries),
            frameon=False,
            fontsize=8,
        )
