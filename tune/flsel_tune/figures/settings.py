"""Pictures of settings and what they led to: slices, and parallel coordinates."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, CategoricalDistribution

from flsel.report.style import GREY, ORANGE, SHADES, tidy
from flsel_tune.figures.points import Point
from flsel_tune.trial import SweepJob

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 4
_ABSENT = -0.12
_WRAP = 16
_LEVEL = 3


def slices_figure(found: Sequence[Point], job: SweepJob) -> Figure:
    """Draw each metric over each setting; the colour is the communication round that a trial reached.

    Args:
        found: Trials that have values and settings.
        job: What they have in common.
    """
    from matplotlib.figure import Figure

    scales = _scales(found)
    columns = min(_COLUMNS, len(scales))
    rows = math.ceil(len(scales) / columns) * len(job.metrics)
    figure = Figure(figsize=(2.9 * columns + 1.0, 2.9 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    shade = _shades(job)
    for index, metric in enumerate(job.metrics):
        block = grid[index * rows // len(job.metrics) : (index + 1) * rows // len(job.metrics)]
        for panel, (name, scale) in zip(block.flat, scales.items(), strict=False):
            shown = [point for point in found if name in point.params]
            x = [scale.at(point.params[name]) for point in shown]
            y = [point.values[index] for point in shown]
            colours = [shade(point.round) for point in shown]
            panel.scatter(x, y, c=colours, s=24, edgecolors=[_edge(point) for point in shown], linewidths=0.9)
            panel.set_xlim(-0.06, 1.06)
            panel.set_ylim(*_limits([point.values[index] for point in found]))
            panel.set_xticks(*scale.ticks(), fontsize=8, rotation=90 if len(scale.choices) > _LEVEL else 0)
            panel.tick_params(labelleft=panel in block[:, 0])
            panel.set_xlabel(_broken(name), fontsize=9)
            tidy(panel)
        for panel in block.flat[len(scales) :]:
            panel.set_visible(False)
        for panel in block[:, 0]:
            panel.set_ylabel(metric.label)
    _bar(figure, job, list(grid.flat))
    return figure


def parallel_figure(found: Sequence[Point], job: SweepJob) -> Figure:
    """Draw a line for each trial through its values and settings, coloured by the round that it reached.

    Complete trials are drawn thicker, the best in a colour of their own; a setting that a trial does not
    have is crossed below its axis.

    Args:
        found: Trials that have values and settings.
        job: What they have in common.
    """
    from matplotlib.figure import Figure

    scales = _scales(found)
    results = [_Scale.of([point.values[n] for point in found]) for n in range(len(job.metrics))]
    names = [*(textwrap.fill(metric.label, _WRAP) for metric in job.metrics), *map(_broken, scales)]
    figure = Figure(figsize=(max(7.0, 1.55 * len(names) + 1.2), 4.6), layout="constrained")
    axes = figure.subplots()
    shade = _shades(job)
    for point in sorted(found, key=lambda point: (point.best, point.complete, point.number)):
        heights = [scale.at(value) for scale, value in zip(results, point.values, strict=True)]
        heights += [_height(point, name, scale) for name, scale in scales.items()]
        axes.plot(
            heights,
            color=ORANGE if point.best else shade(point.round),
            linewidth=2.4 if point.best else 1.3 if point.complete else 0.7,
            zorder=3 if point.best else 2,
        )
    for position, scale in enumerate([*results, *scales.values()]):
        _axis(axes, position, scale)
    axes.set_xlim(-0.1, len(names) - 0.4)
    axes.set_ylim(_ABSENT - 0.03, 1.04)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if any(len(point.params) < len(scales) for point in found):
        axes.text(-0.08, _ABSENT, "not in use", fontsize=7, va="center", ha="left", color=GREY)
    axes.plot([], [], color=ORANGE, linewidth=2.4, label="best")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), frameon=False, fontsize=8)
    _bar(figure, job, [axes])
    return figure


@dataclass(frozen=True)
class _Scale:
    """How values of a setting or a metric lie on an axis from 0 to 1."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    @classmethod
    def of(cls, values: Sequence[float]) -> _Scale:
        return cls(min(values), max(values))

    @classmethod
    def searched(cls, range: BaseDistribution) -> _Scale:
        if isinstance(range, CategoricalDistribution):
            return cls(0, max(1, len(range.choices) - 1), choices=range.choices)
        made: Any = range
        return cls(made.low, made.high, log=made.log, whole=isinstance(made.low, int))

    def at(self, value: Any) -> float:
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        known = [(type(choice), choice) for choice in self.choices]  # 1, 1.0 and True are not the same choice
        number = float(known.index((type(value), value)) if known else value)
        return (number - self.low) / (self.high - self.low or 1.0)

    def ticks(self) -> tuple[list[float], list[str]]:
        if self.choices:
            return [self.at(choice) for choice in self.choices], [_short(str(c)) for c in self.choices]
        shown = [self.low, self.high]
        if self.high > self.low:
            middle = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
            shown.insert(1, round(middle) if self.whole else middle)
        return [self.at(value) for value in shown], [f"{value:.3g}" for value in shown]


def _scales(found: Sequence[Point]) -> dict[str, _Scale]:
    ranges: Mapping[str, BaseDistribution] = {
        name: range for point in found for name, range in point.ranges.items()
    }
    return {name: _Scale.searched(range) for name, range in ranges.items()}


def _height(point: Point, name: str, scale: _Scale) -> float:
    return scale.at(point.params[name]) if name in point.params else _ABSENT


def _axis(axes: Axes, position: int, scale: _Scale) -> None:
    axes.vlines(position, 0, 1, color=GREY, linewidth=0.8, zorder=1)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6}
    for height, label in zip(*scale.ticks(), strict=True):
        axes.text(position + 0.04, height, label, fontsize=7, va="center", color=GREY, bbox=box, zorder=4)


def _shades(job: SweepJob) -> Callable[[int], Any]:
    """Return the colour of a communication round."""
    import matplotlib

    shades = matplotlib.colormaps[SHADES]
    return lambda round: shades(round / job.rounds)


def _bar(figure: Figure, job: SweepJob, axes: Sequence[Axes]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    shrink = min(1.0, 5 / figure.get_size_inches()[1])
    shade = ScalarMappable(Normalize(0, job.rounds), SHADES)
    bar = figure.colorbar(shade, ax=list(axes), pad=0.02, aspect=25, shrink=shrink, anchor=(0, 1))
    bar.set_label("communication round reached", fontsize=8)
    bar.ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    bar.ax.tick_params(labelsize=8)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


def _edge(point: Point) -> str:
    return ORANGE if point.best else "black" if point.complete else "none"


def _short(text: str) -> str:
    return text if len(text) <= _WRAP else f"{text[: _WRAP - 1]}…"


def _broken(name: str) -> str:
    """Break a setting's name before its last part and before its condition."""
    key, bracket, condition = name.partition(" [")
    group, dot, last = key.rpartition(".")
    lines = [group, f"{dot}{last}"] if len(key) > _WRAP and group else [key]
    return "\n".join([*lines, *([f"[{condition}"] if bracket else [])])
