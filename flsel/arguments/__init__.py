"""What a class takes from its user: arguments declared once, with type, range and search range.

    alpha: Annotated[float, Range(0, below=1), Tunable(0.1, 0.9)] = 0.5

The check of a value, its error message, the command line's help, the default search space and the tables of
the docs all come from this one line.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from flsel.errors import UserError

_MOST_SHOWN = 100
# Sizes of numbers that neither single precision nor a square in double precision loses.
_SMALLEST, _LARGEST = 1e-30, 1e30
_MOST_WHOLE = 2**63 - 1
_NAMES: Mapping[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false each"),
    str: ("text", "texts"),
    type(None): ("null", "null each"),
}


@dataclass(frozen=True)
class Range:
    """Which numbers an argument takes, none infinite or of absurd size; in a list, one or more of such.

    Attributes:
        low: Smallest value.
        high: Largest value.
        above: What all values are larger than, instead of ``low``.
        below: What all values are smaller than, instead of ``high``.
        seconds: What one more takes at the least, for the message where the number is too high.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    seconds: float | None = None

    def __contains__(self, value: float) -> bool:
        # A tiny share is as good as none.
        if _absurd(value) and not (self.bounded and abs(value) < 1):
            return False
        over = (self.low is None or value >= self.low) and (self.above is None or value > self.above)
        return (
            over and (self.high is None or value <= self.high) and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        left, right = _number(self.low, self.above), _number(self.high, self.below)
        if left and right:
            return (
                f"in {'[' if self.above is None else '('}{left}, {right}{']' if self.below is None else ')'}"
            )
        if left:
            return f"{'>=' if self.above is None else '>'} {left}"
        return f"{'<=' if self.below is None else '<'} {right}" if right else ""

    @property
    def bounded(self) -> bool:
        """Whether it has both ends, so that infinity needs no mention."""
        return str(self).startswith("in ")


@dataclass(frozen=True)
class Tunable:
    """Search range of an argument: what ``flsel tune`` tries where it is not told.

    Attributes:
        low: Smallest value worth trying.
        high: Largest value worth trying, > ``low``.
        log: Search on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Argument:
    """One argument of a class or a function.

    Attributes:
        name: Its name.
        hint: Its type; ``Any`` where there is none.
        default: Its default, or ``MISSING``.
        range: Which numbers it takes.
        tunable: Its search range.
    """

    name: str
    hint: Any
    default: Any
    range: Range | None = None
    tunable: Tunable | None = None

    def holds(self, value: Any) -> bool:
        """Tell whether a value has the type and the range; types that are not plain are not judged."""
        if value is None or value is self.default:
            return value is self.default or {type(None), Any} & set(alternatives(self.hint)) != set()
        return any(_fits(value, part, self.range) for part in alternatives(self.hint))

    def rule(self) -> str:
        """Say which values it takes, in words: ``a whole number >= 1 or null``."""
        return rule(self.hint, self.range)


@functools.cache
def arguments(made: Callable[..., Any]) -> Mapping[str, Argument]:
    """Return what a class or a function takes, by name, in order; ``*args`` and ``**kwargs`` are left out."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except ValueError:  # made in C
        return {}
    hints = type_hints(made)
    factories: dict[str, Callable[[], Any]] = {}
    if is_dataclass(made):
        factories = {f.name: f.default_factory for f in fields(made) if f.default_factory is not MISSING}
    found = dict[str, Argument]()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        name, default = parameter.name, parameter.default
        hint = hints.get(name, Any)
        hint, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if name in factories:
            default = factories[name]()
        found[name] = Argument(
            name,
            hint,
            MISSING if default is parameter.empty else default,
            next((note for note in notes if isinstance(note, Range)), None),
            next((note for note in notes if isinstance(note, Tunable)), None),
        )
    return found


def type_hints(made: Callable[..., Any]) -> dict[str, Any]:
    """Return the types that a class or a function declares for its arguments, with their notes."""
    source = made if is_dataclass(made) or not inspect.isclass(made) else made.__init__
    try:
        return get_type_hints(source, include_extras=True)
    except (NameError, TypeError):  # a type that is imported for type checkers only
        return {}


def check(made: Callable[..., Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Check that values are what a class or a function declares of the arguments of their names.

    Args:
        made: The class or function.
        values: Values by name; others than arguments are left alone.
        prefix: What stands before the names in messages, such as ``local.``.

    Raises:
        UserError: Naming the first that is not.
    """
    for name, argument in arguments(made).items():
        if name in values and not argument.holds(values[name]):
            size = _size(values[name]) if _absurd(values[name]) else ""
            time = _time(values[name], argument.range)
            raise UserError(
                f"{prefix}{name} must be {argument.rule()}{size}, got {shown(values[name])}{time}."
            )


class Checked:
    """What checks its arguments when it is made, where it is a dataclass."""

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            UserError: If one is not what the class declares.
        """
        check(type(self), vars(self))


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


def _absurd(value: Any) -> bool:
    if isinstance(value, float):
        return value != 0 and not _SMALLEST <= abs(value) <= _LARGEST
    return isinstance(value, int) and abs(value) > _MOST_WHOLE


def _size(value: float) -> str:
    """Say which sizes a number may have, where its own is absurd."""
    if isinstance(value, int):
        return ", of at most 64 bits"
    return f", from {_SMALLEST:g} to {_LARGEST:g} in size" if math.isfinite(value) else ""


def _time(value: Any, within: Range | None) -> str:
    """Say how long so many would take, where a number is too high for that reason."""
    if within is None or not within.seconds or not isinstance(value, int) or value <= (within.high or 0):
        return ""
    days = min(value, _LARGEST) * within.seconds / 86400
    return f", which take {f'{days:,.0f} days' if days < 730 else f'{days / 365:,.0f} years'} or more"


def _number(closed: float | None, open: float | None) -> str:
    bound = open if closed is None else closed
    return "" if bound is None else f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


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


def _fits(value: Any, hint: Any, within: Range | None) -> bool:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (int, float):
        kind = Integral if origin is int else Real
        number = isinstance(value, kind) and not isinstance(value, bool)
        return number and (within is None or value in within)
    if origin in (bool, str, type(None)):
        # No name and no path can hold a NUL.
        return isinstance(value, origin) and not (isinstance(value, str) and "\0" in value)
    if origin is Literal:
        return value in inner
    if origin in (tuple, list) and inner and inner[0] in (int, float):
        if not isinstance(value, tuple | list) or (within is not None and not value):
            return False
        return all(_fits(item, inner[0], within) for item in value)
    return True
