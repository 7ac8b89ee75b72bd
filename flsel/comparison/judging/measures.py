"""The measures of a run: name, words, unit, direction, and how they are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flsel.comparison.judging.estimates import gini
from flsel.comparison.judging.time_to_target import TargetTime, first_at
from flsel.comparison.run_table import Run
from flsel.data.heterogeneity import cohort_entropy
from flsel.metrics import METRICS, SCORE, Better, Score, mean_over_rounds
from flsel.runner.cost_axes import COST_AXES

Kind = Literal["difference", "ratio"]
EQUAL = ("bytes", "simulated_seconds")
"""Costs at whose equal amount scores are compared."""


@dataclass(frozen=True)
class Measure:
    """A number of a run.

    Attributes:
        name: Column of ``results.csv``.
        words: What it is, in words.
        unit: Its unit; ``%`` for shares, which are stored in [0, 1].
        kind: Whether variants are compared by differences or by ratios (of logarithms).
        better: Whether more or less of it is better; None where neither is.
        lowest: Smallest value that it can have.
    """

    name: str
    words: str
    unit: str
    kind: Kind = "difference"
    better: Better | None = "min"
    lowest: float = 0.0


@dataclass(frozen=True)
class Target:
    """A score to reach.

    Attributes:
        value: The score; an accuracy is in (0, 1].
        chosen_after: Whether it was chosen when the runs had been seen.
        score: What it is a value of.
    """

    value: float
    chosen_after: bool = False
    score: Score = SCORE

    @property
    def shown(self) -> str:
        """The value in words, such as ``80 %``."""
        return self.score.shown(self.value)


def titles(curves: Iterable[str]) -> dict[str, str]:
    """Return titles of the axes of curves by name: what was spent, and what was measured."""
    measured = {
        name: METRICS[f"test/{name}"].axis() if f"test/{name}" in METRICS else f"test {name}"
        for name in curves
    }
    return {name: axis.title for name, axis in COST_AXES.items()} | measured


def end_name(score: Score, last: int) -> str:
    """Return the name of the measure of a score at the end of a run."""
    return f"{score.name}/last{last}"


def own_metrics(runs: Sequence[Run]) -> dict[str, Better | None]:
    """Return the run's own metrics (``evaluation.metrics``) that all runs have, and which way is better."""
    found = [run.summary.get("directions", {}) for run in runs]
    return (
        {name: better for name, better in found[0].items() if all(name in f for f in found)} if found else {}
    )


def measures(
    last: int, own: Mapping[str, Better | None] | None = None, score: Score = SCORE
) -> dict[str, Measure]:
    """Return what is measured, by name; costs to a target are apart, as they may be censored.

    Args:
        last: Evaluations in the mean at the end.
        own: As :func:`own_metrics` returns them.
        score: What the runs are judged by.
    """
    unit = "%" if score.is_share else METRICS[score.column].unit if score.column in METRICS else ""
    lowest = 0.0 if score.column in METRICS else -math.inf
    means = f"mean of the last {last} evaluations"
    listed = (
        Measure("accuracy/final", "final test accuracy", "%", better="max"),
        Measure(f"accuracy/last{last}", f"test accuracy, {means}", "%", better="max"),
        Measure("accuracy/auc", "test accuracy, mean over the rounds", "%", better="max"),
        Measure("accuracy/best", "best test accuracy over the rounds", "%", better="max"),
        *(
            Measure(
                at_equal(cost, score), f"{score.words} at equal {COST_AXES[cost].label}", unit,
                better=score.better, lowest=lowest,
            )
            for cost in EQUAL
        ),
        Measure("loss/final", "final test loss", "nats"),
        Measure(f"loss/last{last}", f"test loss, {means}", "nats"),
        Measure("loss/auc", "test loss, mean over the rounds", "nats"),
        *(
            Measure(f"{name}/{end}", words, "", better=better, lowest=-math.inf)
            for name, better in (own or {}).items()
            for end, words in (("final", f"final test {name}"), (f"last{last}", f"test {name}, {means}"))
        ),
        Measure(
            "client_train/worst10", "training accuracy of the worst tenth of the clients", "%", better="max"
        ),
        Measure("client_train/variance", "variance of the clients' training accuracies", ""),
        Measure("participation/gini", "Gini coefficient of participation", ""),
        Measure("participation/variance", "variance of participation", ""),
        Measure("cohort/entropy", "label entropy of a cohort", "nats", better=None),
        *(Measure(f"total/{a.name}", f"{a.label} in all", a.unit, "ratio") for a in COST_AXES.values()),
    )  # fmt: skip
    return {measure.name: measure for measure in listed}


def at_equal(cost: str, score: Score) -> str:
    """Name the measure of a score at an equal cost, such as ``accuracy/equal_bytes``."""
    return f"{score.name}/equal_{cost}"


def score_at_equal(runs: Sequence[Run], last: int) -> dict[str, dict[str, float]]:
    """Measure the score of runs when each has spent what the cheapest of them spends in all.

    Args:
        runs: Complete runs of one scenario.
        last: Evaluations in the mean up to there; fewer if a run has fewer.

    Returns:
        By folder the measures by name, for the costs that all runs have.
    """
    found: dict[str, dict[str, float]] = {str(run.folder): {} for run in runs}
    for cost in EQUAL:
        if runs and all(cost in run.columns for run in runs):
            most = min(float(run.columns[cost][-1]) for run in runs)
            for run in runs:
                until = int(np.searchsorted(run.columns[cost], most, side="right"))
                values = run.columns[run.score.column][max(until - last, 0) : until]
                found[str(run.folder)][at_equal(cost, run.score)] = float(values.mean())
    return found


def measure(run: Run, last: int) -> dict[str, float]:
    """Measure a complete run.

    Returns:
        Values by name, as far as the run's files have them.
    """
    columns = run.columns
    found: dict[str, float] = {}
    own = run.summary.get("directions", {})
    there = [name for name in ("accuracy", "loss", *own) if f"test/{name}" in columns]
    for short in there:
        values = columns[f"test/{short}"]
        found[f"{short}/final"] = float(values[-1])
        found[f"{short}/last{last}"] = float(values[-last:].mean())
        if short not in own:
            found[f"{short}/auc"] = mean_over_rounds(columns["round"], values)
    if "accuracy" in there:
        found["accuracy/best"] = float(np.nanmax(columns["test/accuracy"]))
    for name in ("worst10", "variance"):
        if (column := f"client_train/accuracy_{name}") in columns:
            found[f"client_train/{name}"] = float(columns[column][-1])
    found |= {f"total/{name}": float(columns[name][-1]) for name in COST_AXES if name in columns}
    return found | _participation(run)


def arrivals(run: Run, target: Target, window: int) -> dict[str, TargetTime]:
    """Return what a complete run spent to reach a target, by name of the cost.

    Args:
        run: The run.
        target: What to reach.
        window: Evaluations in the running mean; 1 is the first hit.
    """
    values = run.columns[target.score.column]
    return {
        name: first_at(target.value, run.columns[name], values, window, target.score.better)
        for name in COST_AXES
        if name in run.columns
    }


def chosen_target(baseline: Sequence[Run], last: int, score: Score = SCORE) -> Target | None:
    """Choose a target when none was given: what the baseline's runs have at their end, to the whole per cent.

    Other scores are rounded to two digits. Rounded to what is worse, so that most of the baseline's own runs
    get there.
    """
    ends = [float(run.columns[score.column][-last:].mean()) for run in baseline]
    ends = [end for end in ends if math.isfinite(end)]
    worst = min(ends, key=lambda end: score.gains * end, default=0.0)
    if worst == 0:
        return None
    digits = 2 if score.is_share else 1 - math.floor(math.log10(abs(worst)))
    way = math.floor if score.better == "max" else math.ceil
    # 100 * 0.57 is a little less than 57.
    scaled = way(round(worst * 10.0**digits, 9))
    value = scaled / 10**digits if digits >= 0 else float(scaled * 10**-digits)
    return Target(value, chosen_after=True, score=score) if value > 0 or not score.is_share else None


def _participation(run: Run) -> dict[str, float]:
    counts = run.counts
    if counts.sum() == 0:
        return {}
    found = {"participation/gini": gini(counts), "participation/variance": float(counts.var())}
    labels = run.labels
    if labels is not None:
        entropies = [cohort_entropy(labels, step.clients) for step in run.rounds if step.clients]
        found["cohort/entropy"] = float(np.mean(entropies))
    elif "cohort/entropy" in run.columns:
        found["cohort/entropy"] = float(np.nanmean(run.columns["cohort/entropy"]))
    return found


def arrival_name(cost: str, window: int) -> str:
    """Return the name of a cost to the target."""
    return f"{cost}/target" if window == 1 else f"{cost}/target{window}"


def scale(measure: Measure) -> float:
    """Return by what values are multiplied to be shown: shares are shown in per cent."""
    return 100.0 if measure.unit == "%" else 1.0
