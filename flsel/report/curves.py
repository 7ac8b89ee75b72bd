"""Learning curves of one run over communication rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flsel.metrics import METRICS, SCORE, Score, columns, first_hit
from flsel.report.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PANEL_INCHES,
    PINK,
    SKY,
    legend_below,
    tidy_axes,
    whole_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, float]]

# The line styles tell them apart in grey.
_LINES = {
    "test": (BLUE, "-"),
    "validation": (ORANGE, "--"),
    "clients' mean training": (GREEN, "-."),
    "clients' worst 10 % of training": (PINK, ":"),
    "clients' mean test": (GREEN, "-"),
    "clients' worst 10 % of test": (PINK, "-"),
}
_MARKED_ROWS = 25
_LOG_RATIO = 50
_LEAST_ROUNDS = 2
_LEAST_ACCURACY_SPAN = 0.05


def curves_figure(
    metrics: Rows,
    *,
    title: str,
    target: float | None = None,
    counts: Sequence[int] | None = None,
    score: Score = SCORE,
) -> Figure:
    """Draw the score and the loss over communication rounds and, if given, how often clients were selected.

    Args:
        metrics: Rows of ``metrics.csv``, at least one.
        title: Title of the figure.
        target: Score to mark, with the first evaluated round that reaches it.
        counts: How often each of the N clients was selected, ``[N]``.
        score: What the run is judged by.

    Returns:
        A Matplotlib figure that no pyplot state knows; save it with :func:`flsel.report.style.save_figure`.
    """
    from matplotlib.figure import Figure

    panels = 2 if counts is None else 3
    width, height = PANEL_INCHES
    figure = Figure(figsize=(panels * width, height), layout="constrained")
    axes = figure.subplots(1, panels)
    figure.suptitle(title, fontsize=11)
    _score_panel(axes[0], metrics, target, score)
    _loss_panel(axes[1], metrics)
    if counts is not None:
        _participation_panel(axes[2], counts)
    legend_below(figure, axes)
    return figure


def _score_panel(axes: Axes, metrics: Rows, target: float | None, score: Score) -> None:
    _curves(axes, metrics, score.name)
    if target is not None:
        _mark_target(axes, metrics, target, score)
    if score.is_share:
        axes.set_ylim(_widen(axes.get_ylim(), _LEAST_ACCURACY_SPAN))


def _mark_target(axes: Axes, metrics: Rows, target: float, score: Score) -> None:
    hit = first_hit([row.get(score.column, math.nan) for row in metrics], target, better=score.better)
    reached = None if hit is None else metrics[hit]["round"]
    when = "not reached" if reached is None else f"round {reached}"
    axes.axhline(target, color=GREY, linewidth=1, linestyle=(0, (5, 3)), label=f"target {target:g} ({when})")
    if reached is not None:
        axes.axvline(reached, color=GREY, linewidth=0.8, linestyle=":")


def _loss_panel(axes: Axes, metrics: Rows) -> None:
    drawn = _curves(axes, metrics, "loss")
    if drawn and min(drawn) > 0 and max(drawn) > _LOG_RATIO * min(drawn):
        axes.set_yscale("log")


def _curves(axes: Axes, metrics: Rows, quantity: str) -> list[float]:
    drawn: list[float] = []
    series = {key: METRICS[key].series for key in columns(quantity)}
    for key, name in (series or {f"{part}/{quantity}": part for part in ("test", "validation")}).items():
        points = [(row["round"], row[key]) for row in metrics if math.isfinite(row.get(key, math.nan))]
        if points:
            colour, style = _LINES[name]
            marker = "o" if len(points) <= _MARKED_ROWS else None
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                linestyle=style,
                linewidth=1.6,
                marker=marker,
                markersize=3.5,
                label=name,
            )
            drawn += [value for _, value in points]
    axes.set_ylabel(METRICS[f"test/{quantity}"].axis(quantity) if series else quantity)
    axes.set_xlabel("communication round")
    axes.set_xlim(_widen(axes.get_xlim(), _LEAST_ROUNDS))
    whole_ticks(axes.xaxis)
    tidy_axes(axes)
    return drawn


def _participation_panel(axes: Axes, counts: Sequence[int]) -> None:
    from matplotlib.patches import StepPatch

    ordered = sorted((int(count) for count in counts), reverse=True)
    mean = sum(ordered) / len(ordered)
    edges = [position + 0.5 for position in range(len(ordered) + 1)]
    # As axes.stairs() does, but for the limits: those of 100,000 steps take seconds, and are set below.
    axes.add_artist(StepPatch(ordered, edges, fill=True, color=SKY))
    axes.axhline(mean, color=GREY, linewidth=1, linestyle="-.", label=f"mean {mean:.3g}")
    axes.set_xlabel(f"{len(ordered)} clients, most selected first")
    axes.set_ylabel("times selected")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1.08 * max(ordered[0], 1))
    whole_ticks(axes.xaxis)
    whole_ticks(axes.yaxis)
    tidy_axes(axes)


def _widen(limits: tuple[float, float], least: float) -> tuple[float, float]:
    """Return limits at least ``least`` apart: a single point would be magnified without end."""
    low, high = limits
    pad = max(0.0, (least - (high - low)) / 2)
    return low - pad, high + pad
