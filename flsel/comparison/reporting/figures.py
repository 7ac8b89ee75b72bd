"""A comparison's figures for papers: told apart in grey and by colour-blind people, units on all axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flsel.comparison.judging import words
from flsel.comparison.judging.arrival import survival
from flsel.comparison.judging.measures import AXES, COSTS
from flsel.comparison.judging.ranking import performance_profile
from flsel.comparison.judging.results import Analysis, arrival_name
from flsel.comparison.reporting.chart_data import chart_data
from flsel.errors import UserError
from flsel.files import write_atomic
from flsel.report.style import GREY, Look, legend_below, looks, own_letters, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")
_DPI = 150


def plot_curves(analysis: Analysis, *, cost: str = "rounds", measure: str = "accuracy") -> Figure:
    """Draw learning curves: the mean over seeds, and their range as a band; a panel for each setting.

    Args:
        analysis: The comparison.
        cost: Horizontal axis: ``rounds``, ``models``, ``bytes``, ``passes`` or ``seconds``.
        measure: ``accuracy`` or ``loss``.

    Raises:
        UserError: If there is no such cost or measure.
    """
    _check("cost", cost, COSTS)
    _check("measure", measure, ("accuracy", "loss"))
    rows = chart_data(analysis).get("curves", [])

    def draw(axes: Axes, setting: str, variant: str, look: Look) -> None:
        chosen = [r for r in rows if (r["setting"], r["variant"]) == (setting, variant) and cost in r]
        at = [row[cost] for row in chosen]
        low, mean, high = (
            [_number(row[name]) for row in chosen] for name in (f"{measure}_low", measure, f"{measure}_high")
        )
        axes.fill_between(at, low, high, color=look.colour, alpha=0.15, linewidth=0)
        every = max(1, len(at) // 8)
        axes.plot(at, mean, label=variant, markevery=every, **_line(look))

    return _prefixed(_panels(analysis, draw, AXES[cost], AXES[measure]), cost)


def plot_cost(analysis: Analysis, *, cost: str = "bytes") -> Figure:
    """Draw the accuracy at the end against what was spent, with 95 % intervals.

    Raises:
        UserError: If there is no such cost.
    """
    _check("cost", cost, COSTS)

    def draw(axes: Axes, setting: str, variant: str, look: Look) -> None:
        accuracy = analysis.summary(variant, setting, analysis.main)
        spent = analysis.summary(variant, setting, f"total/{cost}")
        if accuracy is not None and spent is not None:
            mean = accuracy.mean
            ends = None if math.isnan(mean.low) else [[mean.value - mean.low], [mean.high - mean.value]]
            axes.errorbar(
                [spent.mean.value], [mean.value], yerr=ends, label=variant, color=look.colour,
                marker=look.marker, linestyle="none", capsize=3,
            )  # fmt: skip

    return _prefixed(_panels(analysis, draw, AXES[cost], "test accuracy at the end"), cost)


def plot_pairs(analysis: Analysis) -> Figure:
    """Draw every seed's difference to the baseline as a dot, with the mean's 95 % interval."""
    data = chart_data(analysis)
    shown = [variant for variant in analysis.variants if variant != analysis.options.baseline]

    def draw(axes: Axes, setting: str, variant: str, look: Look) -> None:
        if variant not in shown:
            axes.axvline(0, color=GREY, linewidth=1, linestyle="--")
            axes.set_yticks(range(len(shown)), shown)
            axes.invert_yaxis()
            return
        place = shown.index(variant)
        mine = [r for r in data.get("pairs", []) if (r["setting"], r["variant"]) == (setting, variant)]
        for row in data.get("intervals", []):
            if (row["setting"], row["variant"]) == (setting, variant) and row["low"] is not None:
                axes.plot(
                    [row["low"], row["high"]], [place, place], color=look.colour, linewidth=5, alpha=0.35
                )
        at = [row["difference"] for row in mine]
        axes.plot(at, [place] * len(at), linestyle="none", marker=look.marker, color=look.colour)

    label = f"difference to {analysis.options.baseline} in test accuracy (points)"
    return _panels(analysis, draw, label, "", legend=False, baseline_first=True)


def plot_target(analysis: Analysis) -> Figure:
    """Draw which share of runs has reached the target by a round (Kaplan-Meier)."""
    name = arrival_name("rounds", analysis.options.last)

    def draw(axes: Axes, setting: str, variant: str, look: Look) -> None:
        found = analysis.arrival(variant, setting, name)
        if found is not None:
            at, alive = survival(list(found.arrivals.values()))
            axes.step(at, 1 - alive, where="post", label=variant, **_line(look))
            axes.set_ylim(0, 1.02)

    goal = "the target" if analysis.target is None else f"{100 * analysis.target.accuracy:g} %"
    return _panels(analysis, draw, "communication rounds", f"share of runs that reached {goal}")


def plot_ranks(analysis: Analysis) -> Figure:
    """Draw mean ranks over settings, and bars over those that are not told apart (Nemenyi, 5 %).

    Raises:
        UserError: If too few settings have all variants.
    """
    from matplotlib.figure import Figure

    ranking = analysis.ranking
    if ranking is None:
        raise UserError("ranks need two variants, and two settings that have them all.")
    order = np.argsort(ranking.mean_ranks, kind="stable")
    names, ranks = [analysis.variants[at] for at in order], ranking.mean_ranks[order]
    figure = Figure(figsize=(7, 1.4 + 0.32 * len(names)), layout="constrained")
    axes = figure.subplots()
    styles = looks(analysis.variants)
    for place, (name, value) in enumerate(zip(names, ranks, strict=True)):
        axes.plot([value], [place], marker=styles[name].marker, color=styles[name].colour)
    axes.set_yticks(range(len(names)), names)
    for number, (first, last) in enumerate(ranking.groups()):
        at = len(names) - 0.3 + 0.3 * number
        axes.plot([ranks[first], ranks[last]], [at, at], color=GREY, linewidth=3)
    axes.invert_yaxis()
    axes.set_xlabel(f"mean rank over {ranking.settings} settings, 1 is best; grey bars: not told apart")
    tidy(axes)
    return figure


def plot_profile(analysis: Analysis) -> Figure:
    """Draw performance profiles: the share of runs, over all settings, that end above an accuracy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes = figure.subplots()
    thresholds = np.linspace(0, 1, 201)
    for variant, look in looks(analysis.variants).items():
        values = [v for s in analysis.summaries if (s.variant, s.measure) == (variant, analysis.main)
                  for v in s.values.values()]  # fmt: skip
        if values:
            share = performance_profile(np.array(values), thresholds)
            axes.plot(thresholds, share, label=variant, markevery=20, **_line(look))
    axes.set_xlabel("test accuracy at the end")
    axes.set_ylabel("share of runs above it")
    tidy(axes)
    legend_below(figure, [axes])
    return figure


FIGURES: Mapping[str, Callable[[Analysis], Figure]] = {
    "curves": plot_curves,
    "cost": plot_cost,
    "pairs": plot_pairs,
    "target": plot_target,
    "ranks": plot_ranks,
    "profile": plot_profile,
}


def write_figures(analysis: Analysis, folder: Path) -> list[Path]:
    """Write every figure that there is something for, in each format.

    Args:
        analysis: The comparison.
        folder: Where; created if missing.

    Raises:
        UserError: If a file cannot be written.
    """
    folder.mkdir(exist_ok=True)
    has = {
        "pairs": bool(analysis.pairs),
        "target": analysis.target is not None,
        "ranks": analysis.ranking is not None,
        "profile": len(analysis.settings) > 1,
    }
    written = []
    for name, make in FIGURES.items():
        if not has.get(name, True):
            continue
        figure = make(analysis)
        for kind in FORMATS:
            _save(figure, folder / f"{name}.{kind}", kind)
            written.append(folder / f"{name}.{kind}")
    return written


def _save(figure: Figure, path: Path, kind: str) -> None:
    import matplotlib

    # Without dates and with a fixed salt the same numbers give the same bytes.
    metadata: dict[str, Any] = {
        "pdf": {"CreationDate": None},
        "svg": {"Date": None},
        "png": {"Software": None},
    }
    with own_letters(figure), matplotlib.rc_context({"svg.hashsalt": "flsel", "pdf.fonttype": 42}):
        write_atomic(
            path, lambda stream: figure.savefig(stream, format=kind, dpi=_DPI, metadata=metadata[kind])
        )


def _panels(
    analysis: Analysis,
    draw: Callable[[Axes, str, str, Look], None],
    x: str,
    y: str,
    *,
    legend: bool = True,
    baseline_first: bool = False,
) -> Figure:
    """Draw every variant in a panel for each setting."""
    from matplotlib.figure import Figure

    count = len(analysis.settings)
    across = min(count, 3)
    down = math.ceil(count / across)
    figure = Figure(figsize=(max(5.0, 4.2 * across), 3.6 * down), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    styles = looks(analysis.variants)
    order = sorted(analysis.variants, key=lambda name: baseline_first and name != analysis.options.baseline)
    for axes, setting in zip(panels, analysis.settings, strict=False):
        for variant in order:
            draw(axes, setting, variant, styles[variant])
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_title(words.where(setting).strip(), fontsize=9)
        tidy(axes)
    for axes in panels[count:]:
        axes.remove()
    if legend:
        legend_below(figure, panels[:count])
    return figure


def _prefixed(figure: Figure, cost: str) -> Figure:
    """Write large costs as 0.5 G instead of with a power of ten at the axis' end."""
    from matplotlib.ticker import EngFormatter

    if cost in ("bytes", "models", "passes"):
        for axes in figure.axes:
            axes.xaxis.set_major_formatter(EngFormatter())
    return figure


def _check(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise UserError(f"{name} must be one of {', '.join(known)}, got {value!r}.")


def _line(look: Look) -> dict[str, Any]:
    dash: Any = (0, look.dash) if look.dash else "-"
    return {"color": look.colour, "linestyle": dash, "linewidth": 1.6, "marker": look.marker, "markersize": 4}


def _number(value: float | None) -> float:
    return math.nan if value is None else value
