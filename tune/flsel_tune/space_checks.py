"""Check the entries of a search space: each alone, with one another, and with the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from flsel.config.fingerprint import PRESENTATION
from flsel.errors import UserError, short
from flsel_tune.space import Dimension, Space

_MACHINE = "it says where and how a trial is shown or run, not what it computes"
_SAME = "trials are measured alike, or their values could not be compared"
# Settings, or groups of them, that are the same in all trials.
_OWN = {
    "seed": "every trial runs under --seeds",
    "rounds": "all trials of a sweep have as many, and a scheduler stops some early",
    "evaluation": _SAME,
    "data.validation": _SAME,
    **dict.fromkeys(("accelerator", "device", "threads", *PRESENTATION), _MACHINE),
}
_MOST_STEPS = 2**53  # What a number can count.


def check_space(space: Space, parses: Callable[[Mapping[str, Any]], object]) -> None:
    """Check that the settings accept every end of every dimension.

    Args:
        space: The space.
        parses: Parses the config with settings changed, and raises a UserError if it cannot.

    Raises:
        UserError: If a key is unknown or a value is refused.
    """
    for dimension in space.dimensions:
        for value in (*dimension.ends(), *([] if dimension.init is None else [dimension.init])):
            settings = {**space.conditions(dimension), dimension.key: value}
            try:
                parses(space.needed(settings) | settings)
            except UserError as error:
                raise UserError(f"space {dimension.key} at {_shown(value)}: {error}") from error.__cause__


def check_dimension(dimension: Dimension) -> None:
    """Refuse ends, steps and first values that do not go together.

    Raises:
        UserError: If they do not.
    """
    key, low, high = dimension.key, dimension.low, dimension.high
    if dimension.kind != "choice":
        if not low < high:
            raise UserError(f"space {key}: low must be below high, got {low:g} and {high:g}.")
        if (dimension.kind == "loguniform" or dimension.log) and low <= 0:
            raise UserError(f"space {key}: low must be above 0 on a logarithmic scale, got {low:g}.")
        numbers = (low, high, 1 if dimension.step is None else dimension.step)
        if dimension.kind == "int" and any(number != int(number) for number in numbers):
            raise UserError(f"space {key}: low, high and step must be whole numbers for type int.")
    if dimension.step is not None:
        _check_step(dimension)
    if dimension.log and dimension.step not in (None, 1):
        raise UserError(f"space {key}: step and log exclude one another.")
    if dimension.init is not None and not dimension.holds(dimension.init):
        raise UserError(f"space {key}: init must be one of the values searched over, got {dimension.init!r}.")


def check_key(dimension: Dimension, dimensions: Iterable[Dimension]) -> None:
    """Refuse what the sweep itself sets, and entries of one key that could hold together."""
    key, when = dimension.key, dict(dimension.when)
    own = next((own for own in _OWN if f"{key}.".startswith(f"{own}.")), None)
    if own is not None:
        raise UserError(f"space {key} cannot be searched over: {_OWN[own]}.")
    for other in dimensions:
        if other is not dimension and other.key == key:
            others = dict(other.when)
            if not any(set(when[name]).isdisjoint(others[name]) for name in when.keys() & others.keys()):
                raise UserError(f"space {key} must have entries whose conditions exclude one another.")


def check_conditions(dimensions: Iterable[Dimension], fixed: Mapping[str, Any]) -> None:
    """Refuse conditions that never hold: what depends on them would silently not be searched."""
    for dimension in dimensions:
        for key, values in dimension.when:
            others = [other for other in dimensions if other.key == key]
            for value in values if others else ():
                if not any(other.holds(value) for other in others):
                    raise UserError(
                        f"space {dimension.key}: when.{key} must be one of the values searched over, "
                        f"got {value!r}."
                    )
    unmet = [_unmet(dimension, fixed) for dimension in dimensions]
    if all(unmet):
        key, values = unmet[0][0]
        raise UserError(
            f"space has nothing to search: its `when` asks for {key} {' or '.join(map(str, values))}, "
            f"and the config has {fixed[key]}."
        )


def _unmet(dimension: Dimension, fixed: Mapping[str, Any]) -> list[tuple[str, tuple[Any, ...]]]:
    return [(key, values) for key, values in dimension.when if key in fixed and fixed[key] not in values]


def _check_step(dimension: Dimension) -> None:
    key, low, high, step = dimension.key, *map(_decimal, (dimension.low, dimension.high, dimension.step))
    if not 0 < step <= high - low:
        raise UserError(f"space {key}: step must be above 0 and at most high - low, got {float(step):g}.")
    if (high - low) / step > _MOST_STEPS:
        raise UserError(f"space {key}: step must be larger, got {float(step):g}: more than 2^53 values.")
    beyond = (high - low) % step
    if beyond:
        raise UserError(
            f"space {key}: high must be low and a number of steps, got {float(high):g}; "
            f"write {float(high - beyond):g}."
        )


def _decimal(number: float | None) -> Decimal:
    # As it is written, and as Optuna counts steps: in binary 0.3 - 0.1 is less than 0.2.
    return Decimal(str(number))


def _shown(value: Any) -> str:
    return "null" if value is None else short(value, 60)
