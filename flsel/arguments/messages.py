"""Words for messages: what a type and a range allow, and what was given instead."""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from flsel.arguments.ranges import LARGEST, SMALLEST, Range, absurd

_MOST_SHOWN = 100
_NAMES: Mapping[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false each"),
    str: ("text", "texts"),
    type(None): ("null", "null each"),
}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the parts of a union, or the type alone."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def rule(hint: Any, within: Range | None = None) -> str:
    """Say which values a type allows, in words."""
    parts = [_words(part, within) for part in alternatives(hint)]
    # A type that cannot be written in YAML, such as a tensor, is left out beside one that can.
    plain = [part for part in parts if not part.startswith("of type ")]
    return " or ".join(dict.fromkeys(plain or parts))


def shown(value: Any) -> str:
    """Write a value as the user did, cut where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or (isinstance(value, str) and value == "null"):
        return "null"
    if isinstance(value, int) and abs(value) > 10**_MOST_SHOWN:
        return f"a number of about {int(value.bit_length() * math.log10(2)) + 1:,} digits"
    text = repr(list(value) if isinstance(value, tuple) else value)
    text = text if "\n" not in text else " ".join(text.split())  # an array's rows
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text):,} characters)"


def sizes(value: Any) -> str:
    """Say which sizes a number may have, where its own is absurd."""
    if not absurd(value):
        return ""
    if isinstance(value, int):
        return ", of at most 64 bits"
    return f", from {SMALLEST:g} to {LARGEST:g} in size" if math.isfinite(value) else ""


def duration(value: Any, within: Range | None) -> str:
    """Say how long so many would take, where a number is too high for that reason."""
    if within is None or not within.seconds or not isinstance(value, int) or value <= (within.high or 0):
        return ""
    days = min(value, LARGEST) * within.seconds / 86400
    return f", which take {f'{days:,.0f} days' if days < 730 else f'{days / 365:,.0f} years'} or more"


def _words(hint: Any, within: Range | None) -> str:
    if hint in (int, float) and within is not None:
        kind = "a finite number" if hint is float and not within.bounded else _NAMES[hint][0]
        return f"{kind} {within}".rstrip()
    if hint in _NAMES:
        return _NAMES[hint][0]
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return ("one of " if len(inner) > 1 else "") + ", ".join(map(str, inner))
    if origin in (dict, Mapping):
        return "a mapping"
    if origin in (tuple, list, Sequence, Iterable):
        each = _NAMES[inner[0]][1] if inner and inner[0] in _NAMES else ""
        if each and within is not None:
            return f"a list of one or more {each} {within}"
        return f"a list of {each}" if each else "a list"
    return f"of type {getattr(hint, '__name__', hint)}"
