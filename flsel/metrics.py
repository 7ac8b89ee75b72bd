"""What a run measures, the columns of ``metrics.csv``; among them what it costs, which the ledger counts.

A cost is what is sent (models, numbers, bytes), a pass over data, or a local training.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from flsel.errors import UserError
from flsel.params import Params, model_bytes

Better = Literal["max", "min"]


@dataclass(frozen=True)
class Metric:
    """One column of ``metrics.csv``.

    Attributes:
        column: Its name, ``group/name``.
        series: Whose it is, where several columns have one quantity; may be empty.
        quantity: What it is.
        better: Whether more or less of it is better; None where neither is.
        unit: What its numbers count; empty for shares in [0, 1] and variances.
    """

    column: str
    series: str
    quantity: str
    better: Better | None
    unit: str = ""

    @property
    def label(self) -> str:
        """Its name in pictures and tables."""
        return f"{self.series} {self.quantity}".strip()

    def axis(self, words: str | None = None) -> str:
        """Return words of it, its label if not given, with the unit."""
        return f"{words or self.label} ({self.unit})" if self.unit else words or self.label

    @property
    def held_out(self) -> bool:
        """Whether it is measured on examples that no client trains on, and its best value is kept."""
        return self.column.startswith(("test/", "validation/"))

    @property
    def worst(self) -> float:
        """Initial best value: minus or plus infinity."""
        return -math.inf if self.better == "max" else math.inf

    def beats(self, value: float, best: float) -> bool:
        """Tell whether a value is better than the best so far; False where neither direction is better."""
        return value > best if self.better == "max" else self.better == "min" and value < best


METRICS: dict[str, Metric] = {
    metric.column: metric
    for metric in (
        Metric("test/loss", "test", "loss", "min", "nats"),
        Metric("test/accuracy", "test", "accuracy", "max"),
        Metric("validation/loss", "validation", "loss", "min", "nats"),
        Metric("validation/accuracy", "validation", "accuracy", "max"),
        Metric("client_train/loss_mean", "clients' mean training", "loss", "min", "nats"),
        Metric("client_train/accuracy_mean", "clients' mean training", "accuracy", "max"),
        Metric("client_train/accuracy_worst10", "clients' worst 10 % of training", "accuracy", "max"),
        Metric("client_train/accuracy_variance", "clients'", "variance of training accuracy", "min"),
        Metric("client_test/accuracy_mean", "clients' mean test", "accuracy", "max"),
        Metric("client_test/accuracy_worst10", "clients' worst 10 % of test", "accuracy", "max"),
        Metric("client_test/accuracy_variance", "clients'", "variance of test accuracy", "min"),
        Metric("selection/variance", "", "variance of the selection counts", "min"),
        Metric("selection/distinct", "", "clients selected at least once", None, "clients"),
        Metric("cohort/entropy", "", "label entropy of the cohort", None, "nats"),
        Metric("ledger/models_down", "", "models sent to clients", "min", "models"),
        Metric("ledger/models_up", "", "models sent to the server", "min", "models"),
        Metric("ledger/scalars_up", "", "numbers sent to the server", "min", "numbers"),
        Metric("ledger/passes", "", "passes over a client's data", "min", "passes"),
        Metric("ledger/trainings", "", "local trainings", "min", "trainings"),
        Metric("ledger/shadow_trainings", "", "local trainings without aggregation", "min", "trainings"),
        Metric("ledger/server_passes", "", "passes over the server's data", "min", "passes"),
        Metric("ledger/bytes_down", "", "bytes sent to clients", "min", "bytes"),
        Metric("ledger/bytes_up", "", "bytes sent to the server", "min", "bytes"),
        Metric("ledger/dropped_updates", "", "updates that were not finite", "min", "updates"),
        Metric("ledger/client_seconds", "", "simulated seconds of all clients", "min", "simulated seconds"),
        Metric("clock/seconds", "", "simulated time", "min", "simulated seconds"),
        Metric("clock/round", "", "simulated time of a round", "min", "simulated seconds"),
        Metric("clock/questions", "", "share of simulated time that waits for answers", "min"),
        Metric(
            "clock/wasted_client_seconds",
            "",
            "simulated client time without effect",
            "min",
            "simulated seconds",
        ),
        Metric("async/staleness_mean", "", "mean staleness of updates", None, "server steps"),
        Metric("async/staleness_max", "", "largest staleness of an update", None, "server steps"),
        Metric("async/in_flight", "", "clients in flight", None, "clients"),
        Metric("seconds/select", "", "time to select", "min", "seconds"),
        Metric("seconds/train", "", "time of local training", "min", "seconds"),
        Metric("seconds/aggregate", "", "time to aggregate", "min", "seconds"),
        Metric("seconds/evaluate", "", "time to evaluate", "min", "seconds"),
    )
}
"""Every metric by its column, in the order of the columns."""


@dataclass(frozen=True)
class Score:
    """What a run is judged by, a column of ``metrics.csv``.

    Attributes:
        column: The column, on the test set.
        better: Whether more or less of it is better.
    """

    column: str = "test/accuracy"
    better: Better = "max"

    @property
    def name(self) -> str:
        """The column without its set, such as ``accuracy``."""
        return self.column.partition("/")[2]

    @property
    def words(self) -> str:
        """What it is, in words, such as ``test accuracy``."""
        return METRICS[self.column].label if self.column in METRICS else f"test {self.name}"

    @property
    def is_share(self) -> bool:
        """Whether it is a share in [0, 1], which is shown in per cent."""
        return self.column == "test/accuracy"

    @property
    def unit(self) -> str:
        """Unit of differences: points of a share; others have none."""
        return "points" if self.is_share else ""

    @property
    def scale(self) -> float:
        """What a difference is multiplied by to be in its unit."""
        return 100.0 if self.is_share else 1.0

    @property
    def gains(self) -> float:
        """What a difference is multiplied by to be a gain: in its unit, and positive where it is better."""
        return self.scale if self.better == "max" else -self.scale

    def reaches(self, value: float, target: float) -> bool:
        """Tell whether a value is at least as good as a target."""
        return value >= target if self.better == "max" else value <= target

    def shown(self, value: float) -> str:
        """Write a value: a share in per cent, others as numbers."""
        return f"{100 * value:g} %" if self.is_share else f"{value:g}"


SCORE = Score()
"""Test accuracy, the score of a classification unless the settings name another."""


def score_of(
    wanted: str | None, better: str | None, measured: Iterable[str], directions: Mapping[str, Better | None]
) -> Score:
    """Return what a run is judged by.

    Args:
        wanted: ``evaluation.score``; None takes the test accuracy, else the test loss.
        better: ``evaluation.better``; None takes the metric's own direction.
        measured: Columns of the run.
        directions: Which way further metrics are better, by name without their set.

    Raises:
        UserError: If it is not measured, or neither says which way it is better.
    """
    known = sorted(name for name in measured if name.startswith("test/"))
    column = wanted or next((name for name in ("test/accuracy", "test/loss") if name in known), None)
    if column not in known:
        listed = ", ".join(known) or "nothing"
        got = f"got {column}" if column else "since there is neither an accuracy nor a loss"
        raise UserError(f"evaluation.score must be a column measured on the test set, {listed}, {got}.")
    ways: dict[str | None, Better] = {"higher": "max", "lower": "min"}
    own = METRICS[column].better if column in METRICS else directions.get(column.partition("/")[2])
    way = ways.get(better, own)
    if way is None:
        raise UserError(
            f"evaluation.better must be lower or higher, since {column} does not say itself which is better."
        )
    return Score(column, way)


ROUND_SECONDS = ("seconds/select", "seconds/train", "seconds/aggregate")
"""Seconds that a deployment would spend too; measuring is the simulation's."""


ON_TEST = ("test/", "client_test/")
"""What the columns begin with that are measured on test data, by which nothing is chosen."""

CLIENT_LOG = "client_log/"
"""What the columns begin with that are what clients log in training."""

_OF_OLDER_RUNS = {
    column.replace("client_train/", "client/"): column
    for column in METRICS
    if column.startswith("client_train/")
}


def current_name(column: str) -> str:
    """Return the name of a column, which files of an older flsel may call otherwise."""
    return _OF_OLDER_RUNS.get(column, column)


def names(group: str) -> tuple[str, ...]:
    """Return the names of a group's columns without the group, such as those of ``ledger``."""
    columns = (column.partition("/") for column in METRICS)
    return tuple(name for found, _, name in columns if found == group)


def columns(quantity: str) -> tuple[str, ...]:
    """Return the columns that hold a quantity, such as ``accuracy``, in the order of the table."""
    return tuple(metric.column for metric in METRICS.values() if metric.quantity == quantity)


def first_hit(
    values: Sequence[float] | np.ndarray, target: float, *, window: int = 1, better: Better | None = "max"
) -> int | None:
    """Find where the running mean of some evaluations first reaches a target.

    A first hit (``window`` 1) rewards curves that jump; the mean of several evaluations does not.

    Args:
        values: The evaluations ``[n]``; NaN reaches nothing.
        target: The value to reach: from above where less is better.
        window: Evaluations in the mean, >= 1.
        better: Which way is better.

    Returns:
        Index of the last evaluation in the first mean that does, or None.
    """
    curve = np.asarray(values, dtype=float)
    if len(curve) < window:
        return None
    means = np.lib.stride_tricks.sliding_window_view(curve, window).mean(axis=1)
    slack = 1e-12 * abs(target)  # A mean of evaluations at the target is rounded to either side of it.
    hits = np.flatnonzero(means <= target + slack if better == "min" else means >= target - slack)
    return int(hits[0]) + window - 1 if len(hits) else None


def mean_over_rounds(rounds: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray) -> float:
    """Return the area under a curve over the rounds by the trapezoidal rule, per round."""
    at, curve = np.asarray(rounds, dtype=float), np.asarray(values, dtype=float)
    if len(curve) == 1:
        return float(curve[0])
    return float((np.diff(at) * (curve[1:] + curve[:-1]) / 2).sum() / (at[-1] - at[0]))


@dataclass(frozen=True)
class Cost:
    """Counts, all >= 0, that are added to a ledger; the columns ``ledger/*`` of ``metrics.csv``.

    Attributes:
        models_down: Models sent to clients.
        models_up: Models, or as much, sent to the server.
        scalars_up: Single numbers sent to the server.
        passes: Passes over one client's data, without training.
        trainings: Local trainings of one client.
        shadow_trainings: Those of them that are not aggregated.
        server_passes: Passes over the server's holdout.
        bytes_down: Bytes of all models sent to clients.
        bytes_up: Bytes of all models sent to the server.
        dropped_updates: Updates that were not finite.
        client_seconds: Simulated seconds of all clients together; zero without devices.
    """

    models_down: int = 0
    models_up: int = 0
    scalars_up: int = 0
    passes: int = 0
    trainings: int = 0
    shadow_trainings: int = 0
    server_passes: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    dropped_updates: int = 0
    client_seconds: float = 0.0

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 0:
            negative = [name for name, count in vars(self).items() if count < 0]
            raise ValueError(f"a cost must not be negative: {', '.join(negative)}")

    def __add__(self, other: Cost) -> Cost:
        theirs = vars(other)
        return Cost(**{name: count + theirs[name] for name, count in vars(self).items()})


NOTHING = Cost()
"""No cost."""
CLIENT_SECOND = Cost(client_seconds=1.0)
"""A simulated second of a client."""


def models_down(count: int, params: Params) -> Cost:
    """Return the cost of ``count`` models like ``params`` sent to clients."""
    return Cost(models_down=count, bytes_down=count * model_bytes(params))


def models_up(count: int, params: Params) -> Cost:
    """Return the cost of ``count`` models or gradients like ``params`` sent to the server."""
    return Cost(models_up=count, bytes_up=count * model_bytes(params))


def training(params: Params, *, down: int, up: int) -> Cost:
    """Return the cost of a local training: ``down`` model-sized messages to the client and ``up`` back."""
    return _training(model_bytes(params), down, up)


@functools.cache
def _training(size: int, down: int, up: int) -> Cost:
    return Cost(models_down=down, models_up=up, bytes_down=down * size, bytes_up=up * size, trainings=1)


@final
class Ledger(Mapping[str, float]):
    """The sum of costs, by the names of :class:`Cost`; without those that are zero.

    Args:
        counts: Costs so far, such as another ledger.
    """

    def __init__(self, counts: Mapping[str, float] | None = None) -> None:
        self._counts: dict[str, Any] = dict(vars(Cost(**counts) if counts else NOTHING))  # type: ignore[arg-type]

    def charge(self, cost: Cost | Ledger, times: float = 1) -> None:
        """Add a cost, or what another ledger holds; the only way to change a ledger.

        Args:
            cost: The cost.
            times: How often it is added.
        """
        counts = vars(cost) if isinstance(cost, Cost) else cost._counts
        for name, count in counts.items():
            if count:
                self._counts[name] += count * times

    def __getitem__(self, name: str) -> float:
        count: float = self._counts[name]
        return count

    def __iter__(self) -> Iterator[str]:
        return (name for name, count in self._counts.items() if count)

    def __len__(self) -> int:
        return sum(1 for _ in self)
