"""What is measured of a run, and how it is compared: name, words, unit, direction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flsel.comparison.judging.arrival import Arrival, first_at
from flsel.comparison.judging.statistics import gini
from flsel.comparison.reading import Run
from flsel.data.heterogeneity import cohort_entropy
from flsel.metrics import METRICS, mean_over_rounds

Kind = Literal["difference", "ratio"]
COSTS: Mapping[str, str] = {
    "rounds": "rounds",
    "models": "models sent down",
    "bytes": "bytes sent",
    "passes": "client passes",
    "seconds": "seconds",
}
"""What a run spends, in words."""
AXES: Mapping[str, str] = {
    **COSTS,
    "rounds": "communication rounds",
    "seconds": "seconds of selecting and training",
    **{name: METRICS[f"test/{name}"].axis() for name in ("accuracy", "loss")},
}
"""Titles of the axes of curves: what was spent, and what was measured."""


@dataclass(frozen=True)
class Measure:
    """A number of a run.

    Attributes:
        name: Column of ``results.csv``.
        words: What it is, in words.
        unit: Its unit; ``%`` for shares, which are stored in [0, 1].
        kind: Whether variants are compared by differences or by ratios (of logarithms).
    """

    name: str
    words: str
    unit: str
    kind: Kind = "difference"


@dataclass(frozen=True)
class Target:
    """A test accuracy to reach.

    Attributes:
        accuracy: The accuracy, in (0, 1].
        chosen_after: Whether it was chosen when the runs had been seen.
    """

    accuracy: float
    chosen_after: bool = False


def measures(last: int) -> dict[str, Measure]:
    """Return what is measured, by name; costs to a target are apart, as they may be censored.

    Args:
        last: Evaluations in the mean at the end.
    """
    listed = (
        Measure("accuracy/final", "final test accuracy", "%"),
        Measure(f"accuracy/last{last}", f"test accuracy, mean of the last {last} evaluations", "%"),
        Measure("accuracy/auc", "test accuracy, mean over the rounds", "%"),
        Measure("accuracy/best", "best test accuracy over the rounds", "%"),
        Measure("loss/final", "final test loss", "nats"),
        Measure(f"loss/last{last}", f"test loss, mean of the last {last} evaluations", "nats"),
        Measure("loss/auc", "test loss, mean over the rounds", "nats"),
        Measure("clients/worst10", "accuracy of the worst tenth of the clients", "%"),
        Measure("clients/variance", "variance of the clients' accuracies", ""),
        Measure("participation/gini", "Gini coefficient of participation", ""),
        Measure("participation/variance", "variance of participation", ""),
        Measure("cohort/entropy", "label entropy of a cohort", "nats"),
        *(Measure(f"total/{name}", f"{words} in all", "", "ratio") for name, words in COSTS.items()),
    )
    return {measure.name: measure for measure in listed}


def measure(run: Run, last: int) -> dict[str, float]:
    """Measure a complete run.

    Args:
        run: The run.
        last: Evaluations in the mean at the end; fewer if the run has fewer.

    Returns:
        Values by name, as far as the run's files have them.
    """
    columns = run.columns
    found: dict[str, float] = {}
    for short, name in (("accuracy", "test/accuracy"), ("loss", "test/loss")):
        values = columns[name]
        found[f"{short}/final"] = float(values[-1])
        found[f"{short}/last{last}"] = float(values[-last:].mean())
        found[f"{short}/auc"] = mean_over_rounds(columns["round"], values)
    found["accuracy/best"] = float(np.nanmax(columns["test/accuracy"]))
    for name, column in (("worst10", "client/accuracy_worst10"), ("variance", "client/accuracy_variance")):
        if column in columns:
            found[f"clients/{name}"] = float(columns[column][-1])
    found |= {f"total/{name}": float(columns[name][-1]) for name in COSTS if name in columns}
    return found | _participation(run)


def arrivals(run: Run, target: Target, window: int) -> dict[str, Arrival]:
    """Return what a complete run spent to reach a target, by name of the cost.

    Args:
        run: The run.
        target: What to reach.
        window: Evaluations in the running mean; 1 is the first hit.
    """
    accuracy = run.columns["test/accuracy"]
    return {
        name: first_at(target.accuracy, run.columns[name], accuracy, window)
        for name in COSTS
        if name in run.columns
    }


def chosen_target(baseline: Sequence[Run], last: int) -> Target | None:
    """Choose a target when none was given: what the baseline's runs have at their end, to the whole per cent.

    Rounded down, so that most of the baseline's own runs get there.
    """
    ends = [float(run.columns["test/accuracy"][-last:].mean()) for run in baseline]
    ends = [end for end in ends if math.isfinite(end)]
    if not ends:
        return None
    # 100 * 0.57 is a little less than 57.
    accuracy = math.floor(round(100 * min(ends), 9)) / 100
    return Target(accuracy, chosen_after=True) if accuracy > 0 else None


def _participation(run: Run) -> dict[str, float]:
    counts = run.counts
    if counts.sum() == 0:
        return {}
    found = {"participation/gini": gini(counts), "participation/variance": float(counts.var())}
    labels = run.labels
    if labels is not None:
        entropies = [cohort_entropy(labels, played.clients) for played in run.rounds if played.clients]
        found["cohort/entropy"] = float(np.mean(entropies))
    elif "cohort/entropy" in run.columns:
        found["cohort/entropy"] = float(np.nanmean(run.columns["cohort/entropy"]))
    return found


def scale(measure: Measure) -> float:
    """Return by what values are multiplied to be shown: shares are shown in per cent."""
    return 100.0 if measure.unit == "%" else 1.0
