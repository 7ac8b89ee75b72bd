"""A sweep's trials as what its pictures show of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from flsel_tune.results import best_trials
from flsel_tune.study import RESULT, Study


@dataclass(frozen=True)
class Point:
    """One trial.

    Attributes:
        number: Number of the trial.
        complete: Whether it played all rounds.
        best: Whether no other complete one is better; with several metrics, better in all of them.
        round: Communication round that it reached.
        values: The metrics' values; of a trial that was stopped, those at its last report; empty if it made
            none.
        params: What was searched over, by dimension's name.
        ranges: Where each of these was searched, by dimension's name.
    """

    number: int
    complete: bool
    best: bool
    round: int
    values: tuple[float, ...]
    params: Mapping[str, Any]
    ranges: Mapping[str, BaseDistribution]


def points(study: Study, metrics: int) -> list[Point]:
    """Return the trials that were started, in the order of their numbers.

    Args:
        study: The study.
        metrics: How many metrics there are.
    """
    best = {trial.number for trial in best_trials(study)}
    return [_point(trial, metrics, best) for trial in study.trials()]


def _point(trial: FrozenTrial, metrics: int, best: set[int]) -> Point:
    last = max(trial.intermediate_values, default=0)
    values = tuple(trial.values or ())
    if not values and last and metrics == 1:
        values = (trial.intermediate_values[last],)
    return Point(
        number=trial.number,
        complete=trial.state is TrialState.COMPLETE,
        best=trial.number in best,
        round=trial.user_attrs.get(RESULT, {}).get("round") or last,
        values=values,
        params=trial.params,
        ranges=trial.distributions,
    )
