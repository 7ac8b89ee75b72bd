"""What the fields of a file that flsel wrote must be, checked before anything trusts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Field = tuple[Callable[[Any], bool], str]
"""Tells whether a value is right, and what it must be, in words."""


def wrong_field(values: Any, fields: Mapping[str, Field]) -> str | None:
    """Say what the first field that is missing or wrong must be: ``seed must be a whole number >= 0``."""
    for name, (right, rule) in fields.items():
        if not isinstance(values, Mapping) or name not in values or not right(values[name]):
            return f"{name} must be {rule}"
    return None


def is_number(value: Any) -> bool:
    """Tell whether a value is a number; truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Tell whether a value is a whole number >= 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def maps_to(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return what tells whether a value is a mapping of names to values that are right."""
    return lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(name, str) and right(item) for name, item in value.items())
    )


COUNT: Field = (is_count, "a whole number >= 0")
NUMBERS: Field = (maps_to(is_number), "numbers by name")
