"""Pictures of what trials reached: by number, against each other, and which settings decided it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate, combinations
from typing import TYPE_CHECKING

from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState

from flsel.report.style import BLUE, LIGHT, ORANGE, PANEL_INCHES, SKY, legend_below, tidy, whole_ticks
from flsel_tune.figures.points import Point
from flsel_tune.metric import Metric
from flsel_tune.study import Study
from flsel_tune.trial import SweepJob

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABEL_PIXELS = 40


def history_figure(found: Sequence[Point], job: SweepJob) -> Figure:
    """Draw each metric by the trial's number, and the best complete one so far.

    Args:
        found: Trials that have values.
        job: What they have in common.
    """
    figure, axes = _panels(len(job.metrics))
    complete = [point for point in found if point.complete]
    others = [point for point in found if not point.complete]
    for panel, (index, metric) in zip(axes, enumerate(job.metrics), strict=True):
        for group, label, colour, marker in (
            (others, "stopped or failed, last report", LIGHT, "v"),
            (complete, "complete", BLUE, "o"),
        ):
            if group:
                at = [point.number for point in group]
                reached = [point.values[index] for point in group]
                panel.scatter(at, reached, s=22, color=colour, marker=marker, label=label)
        if complete:
            better = max if metric.mode == "max" else min
            best = list(accumulate((point.values[index] for point in complete), better))
            numbers = [point.number for point in complete]
            panel.step(numbers, best, where="post", color=ORANGE, linewidth=1.6, label="best so far")
        panel.set_xlabel("trial")
        panel.set_ylabel(metric.label)
        whole_ticks(panel.xaxis)
        tidy(panel)
    legend_below(figure, axes)
    return figure


def pareto_figure(complete: Sequence[Point], job: SweepJob) -> Figure:
    """Draw metrics against each other, two at a time; the best trials carry their numbers.

    Args:
        complete: The complete trials.
        job: What they have in common, with at least two metrics.
    """
    pairs = list(combinations(range(len(job.metrics)), 2))
    figure, axes = _panels(len(pairs), scale=1.25)
    for panel, pair in zip(axes, pairs, strict=True):
        x, y = (job.metrics[index] for index in pair)
        for best, label, colour, size in (
            (False, "complete", SKY, 22),
            (True, "no trial is better in all metrics", ORANGE, 36),
        ):
            group = [point for point in complete if point.best is best]
            panel.scatter(*_along(group, pair), s=size, color=colour, label=label if group else None)
        panel.set_xlabel(_direction(x))
        panel.set_ylabel(_direction(y))
        panel.margins(0.12)
        tidy(panel)
    legend_below(figure, axes)
    figure.draw_without_rendering()  # settles where things are
    for panel, pair in zip(axes, pairs, strict=True):
        _number(panel, [point for point in complete if point.best], pair)
    return figure


def importance_figure(study: Study, job: SweepJob) -> Figure:
    """Draw how much each setting matters for each metric, by PED-ANOVA over the complete trials.

    Args:
        study: The sweep's study.
        job: What its trials have in common.
    """
    complete = [trial for trial in study.trials(TrialState.COMPLETE) if trial.params]
    names = list(dict.fromkeys(name for trial in complete for name in trial.params))
    figure, axes = _panels(len(job.metrics), scale=1.25, height=1.0 + 0.34 * len(names))
    figure.suptitle(f"importance, from {len(complete)} complete trials", fontsize=11)
    for panel, (index, metric) in zip(axes, enumerate(job.metrics), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = PedAnovaImportanceEvaluator().evaluate(study.study, target=_badness(index, metric))
        total = sum(found.values()) or 1.0
        ordered = sorted(found, key=lambda name: found[name])
        panel.barh(ordered, [found[name] / total for name in ordered], color=BLUE)
        panel.set_xlim(0, 1)
        panel.set_xlabel(f"share in the importance for {metric.label}", fontsize=9)
        panel.tick_params(labelsize=8)
        tidy(panel)
        panel.grid(visible=False, axis="y")
    return figure


def _badness(index: int, metric: Metric) -> Callable[[FrozenTrial], float]:
    """Return a metric as the evaluator wants it: less is better."""
    sign = -1.0 if metric.mode == "max" else 1.0
    return lambda trial: sign * trial.values[index]


def _panels(count: int, *, scale: float = 1.2, height: float | None = None) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    width, usual = (scale * inches for inches in PANEL_INCHES)
    figure = Figure(figsize=(width * count, height or usual), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False).flat)


def _direction(metric: Metric) -> str:
    return f"{metric.label}, {'more' if metric.mode == 'max' else 'less'} is better"


def _along(group: Sequence[Point], pair: tuple[int, int]) -> tuple[list[float], list[float]]:
    first, second = pair
    return [point.values[first] for point in group], [point.values[second] for point in group]


def _number(axes: Axes, best: Sequence[Point], pair: tuple[int, int]) -> None:
    """Write trials' numbers beside them, those of close neighbours together."""
    groups: list[tuple[tuple[float, float], list[int]]] = []
    for point in sorted(best, key=lambda point: point.values[pair[0]]):
        at = (point.values[pair[0]], point.values[pair[1]])
        x, y = axes.transData.transform(at)
        if groups:
            nearest = axes.transData.transform(groups[-1][0])
            if abs(x - nearest[0]) < _LABEL_PIXELS and abs(y - nearest[1]) < _LABEL_PIXELS / 4:
                groups[-1] = (at, [*groups[-1][1], point.number])
                continue
        groups.append((at, [point.number]))
    for at, numbers in groups:
        text = ", ".join(map(str, sorted(numbers)))
        axes.annotate(text, at, xytext=(7, 0), textcoords="offset points", fontsize=8, va="center")
