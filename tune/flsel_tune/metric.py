"""What a sweep optimises: a number made of a run's rows of ``metrics.csv``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from flsel.errors import UserError
from flsel.metrics import METRICS, ON_TEST, current_name, first_hit, mean_over_rounds

Rows = Sequence[Mapping[str, float]]
How = Literal["last", "best", "auc", "rounds_to", "seconds_to"]
Mode = Literal["max", "min"]

_CALL = re.compile(r"(\w+)\(\s*([^,()\s]+)\s*(?:,\s*([^,()\s]+)\s*)?\)")
_HOWS: Mapping[str, How] = {
    "last": "last",
    "best": "best",
    "auc": "auc",
    "rounds_to": "rounds_to",
    "seconds_to": "seconds_to",
}


@dataclass(frozen=True)
class SweepObjective:
    """A number made of a run's evaluations.

    Attributes:
        text: How the user wrote it.
        source: Column of ``metrics.csv``.
        how: ``last`` value, ``best`` so far, ``auc`` (mean over the rounds by the trapezoidal rule) or
            ``rounds_to`` or (simulated) ``seconds_to`` a target.
        mode: Whether to maximise or minimise it.
        target: Value to reach, for ``rounds_to`` and ``seconds_to``.
        better: Which way the column is better; None where neither is.
    """

    text: str
    source: str
    how: How
    mode: Mode
    target: float | None = None
    better: Mode | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        """Its name in pictures, with its unit."""
        of = METRICS.get(self.source)
        label = self.source if of is None else of.label
        if self.how == "rounds_to":
            return f"rounds to {label} {self.target:g}"
        if self.how == "seconds_to":
            return f"simulated seconds to {label} {self.target:g}"
        words = {"best": f"best {label}", "auc": f"mean {label} over the rounds"}.get(self.how)
        return words or label if of is None else of.axis(words)

    def value(self, rows: Rows, rounds: int) -> float:
        """Measure a run, finished or not.

        Args:
            rows: Its evaluations so far, ``round`` ascending, at least one.
            rounds: Communication rounds of the whole run (T).

        Returns:
            The value; NaN if an evaluation is not finite, except a first NaN that others follow: some columns
            have no value before the first cohort. For ``rounds_to`` a run that has not reached its target is
            censored: its value is T (1 + shortfall), where the shortfall in (0, 1] is the part that is left
            of the way from the first value to the target. So it is worse than every run that reached the
            target, and better the nearer it came. For ``seconds_to`` T is the run's simulated seconds,
            extrapolated to all rounds; ``time.stop_after_seconds`` ends all runs alike.
        """
        if len(rows) > 1 and math.isnan(rows[0][self.source]):
            rows = rows[1:]
        values = [float(row[self.source]) for row in rows]
        if not all(map(math.isfinite, values)):
            return math.nan
        if self.how == "best":
            return max(values) if self.mode == "max" else min(values)
        if self.how == "auc":
            return mean_over_rounds([float(row["round"]) for row in rows], values)
        if self.how in ("rounds_to", "seconds_to"):
            assert self.target is not None
            spent = [float(row["round" if self.how == "rounds_to" else "clock/seconds"]) for row in rows]
            whole = rounds if self.how == "rounds_to" else spent[-1] * rounds / max(rows[-1]["round"], 1)
            better = self.better
            hit = first_hit(values, self.target, better=better)
            if hit is not None:
                return spent[hit]
            nearest = min(values) if better == "min" else max(values)
            return whole * (1 + (self.target - nearest) / (self.target - values[0]))
        return values[-1]


def parse_metrics(
    text: str, mode: str, own: Mapping[str, Mode | None] | None = None
) -> tuple[SweepObjective, ...]:
    """Read the setting ``metric``.

    Args:
        text: One metric, or several separated by commas.
        mode: ``auto``, ``max`` or ``min``; one for all metrics, or one for each, separated by commas.
        own: By name of the run's own metrics (``evaluation.metrics``) which way is better.

    Raises:
        UserError: If one cannot be read, is measured on the test set, or has no natural direction.
    """
    parts = [current_name(part.strip()) for part in re.split(r",(?![^()]*\))", text)]
    modes = [part.strip() for part in mode.split(",")]
    modes = modes * len(parts) if len(modes) == 1 else modes
    if len(modes) != len(parts) or not set(modes) <= {"auto", "max", "min"}:
        raise UserError(f"mode must be auto, max or min, or one of these for each metric, got {mode!r}.")
    found = tuple(_parse(part, direction, own or {}) for part, direction in zip(parts, modes, strict=True))
    if len({metric.text for metric in found}) < len(found):
        raise UserError(f"metric must not name one twice, got {text!r}.")
    return found


def check_logged(metrics: Iterable[SweepObjective], logged: Iterable[str]) -> None:
    """Check that runs measure what is to be optimised.

    Args:
        metrics: What is to be optimised.
        logged: Columns of ``metrics.csv``.

    Raises:
        UserError: If something is not measured.
    """
    known = sorted(name for name in logged if not name.startswith(ON_TEST) and name != "round")
    for metric in metrics:
        if metric.how == "seconds_to" and "clock/seconds" not in known:
            raise UserError(
                f"metric {metric.text} needs simulated devices, and this run has none: set devices, for "
                "example --devices LogNormal."
            )
        if metric.source in known:
            continue
        if metric.source.startswith("validation/") and not any(n.startswith("validation/") for n in known):
            raise UserError(
                f"metric {metric.text} needs a validation set, and this run holds none out: "
                "set data.validation above 0, such as 0.1."
            )
        raise UserError(f"metric {metric.source} is not measured by this run; there are {', '.join(known)}.")


def _parse(text: str, mode: str, own: Mapping[str, Mode | None]) -> SweepObjective:
    call = _CALL.fullmatch(text)
    name, source, target = call.groups() if call else ("last", text, None)
    how = _HOWS.get(name)
    if how is None or not re.fullmatch(r"[\w/]+", source):
        raise UserError(
            "metric must be a name such as validation/accuracy, best(NAME), auc(NAME) or "
            f"rounds_to(NAME, TARGET) or seconds_to(NAME, TARGET), got {text!r}."
        )
    if source.startswith(ON_TEST):
        other = source.removeprefix("test/") if source.startswith("test/") else "accuracy"
        raise UserError(
            f"metric must not be measured on the test set, which is for the report, got {source}: "
            f"take validation/{other}."
        )
    better = METRICS[source].better if source in METRICS else own.get(source.partition("/")[2])
    reaches = how in ("rounds_to", "seconds_to")
    if reaches != (target is not None):
        needs = f"a target: {how}(NAME, TARGET)" if reaches else f"no target: {how}({source})"
        raise UserError(f"metric {how} takes {needs}, got {text!r}.")
    value = None if target is None else _number(target, text)
    if reaches:
        if mode == "max" or better is None:
            raise UserError(f"metric {text} must be minimised, and be of an accuracy or a loss.")
        if source in METRICS and better == "max" and not 0 < (value or 0) <= 1:
            raise UserError(f"metric {text} must have a target in (0, 1], as accuracies are shares.")
        return SweepObjective(text, source, how, "min", value, better)
    chosen = better if mode == "auto" else mode
    if chosen is None:
        raise UserError(
            f"metric {source} must be an accuracy or a loss, such as validation/accuracy; for another column "
            "of metrics.csv set mode to max or min."
        )
    return SweepObjective(text, source, how, "max" if chosen == "max" else "min", better=better)


def _number(text: str, metric: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"metric {metric} must have a number as its target, got {text!r}.")
    return value
