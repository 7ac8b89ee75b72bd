"""What a run measures: the columns of ``metrics.csv``, what they mean and which way is better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Better = Literal["max", "min"]


@dataclass(frozen=True)
class Metric:
    """One column of ``metrics.csv``.

    Attributes:
        column: Its name, ``group/name``.
        label: What a picture or a table calls it.
        better: Whether more or less of it is better; None where neither is.
        unit: What its numbers count; empty for shares in [0, 1] and variances.
    """

    column: str
    label: str
    better: Better | None
    unit: str = ""

    @property
    def held_out(self) -> bool:
        """Whether it is measured on examples that no client trains on, and its best value is kept."""
        return self.column.startswith(("test/", "validation/"))

    @property
    def worst(self) -> float:
        """What every value beats."""
        return -math.inf if self.better == "max" else math.inf

    def beats(self, value: float, best: float) -> bool:
        """Tell whether a value is better than the best so far; False where neither direction is better."""
        return value > best if self.better == "max" else self.better == "min" and value < best


METRICS: dict[str, Metric] = {
    metric.column: metric
    for metric in (
        Metric("test/loss", "test loss", "min", "nats"),
        Metric("test/accuracy", "test accuracy", "max"),
        Metric("validation/loss", "validation loss", "min", "nats"),
        Metric("validation/accuracy", "validation accuracy", "max"),
        Metric("client/loss_mean", "clients' mean loss", "min", "nats"),
        Metric("client/accuracy_mean", "clients' mean accuracy", "max"),
        Metric("client/accuracy_worst10", "accuracy of the worst 10 % of clients", "max"),
        Metric("client/accuracy_variance", "variance of the clients' accuracies", "min"),
        Metric("selection/variance", "variance of the selection counts", "min"),
        Metric("selection/distinct", "clients selected at least once", None, "clients"),
        Metric("cohort/entropy", "label entropy of the cohort", None, "nats"),
        Metric("ledger/models_down", "models sent to clients", "min", "models"),
        Metric("ledger/models_up", "models sent to the server", "min", "models"),
        Metric("ledger/scalars_up", "numbers sent to the server", "min", "numbers"),
        Metric("ledger/passes", "passes over a client's data", "min", "passes"),
        Metric("ledger/trainings", "local trainings", "min", "trainings"),
        Metric("ledger/shadow_trainings", "local trainings without aggregation", "min", "trainings"),
        Metric("ledger/server_passes", "passes over the server's data", "min", "passes"),
        Metric("ledger/bytes_down", "bytes sent to clients", "min", "bytes"),
        Metric("ledger/bytes_up", "bytes sent to the server", "min", "bytes"),
        Metric("ledger/dropped_updates", "updates that were not finite", "min", "updates"),
        Metric("seconds/select", "time to select", "min", "seconds"),
        Metric("seconds/train", "time of local training", "min", "seconds"),
        Metric("seconds/aggregate", "time to aggregate", "min", "seconds"),
        Metric("seconds/evaluate", "time to evaluate", "min", "seconds"),
    )
}
"""Every metric by its column, in the order of the columns."""


def names(group: str) -> tuple[str, ...]:
    """Return the names of a group's columns without the group, such as those of ``ledger``."""
    columns = (column.partition("/") for column in METRICS)
    return tuple(name for found, _, name in columns if found == group)
