"""Check that a value from Python is the object that a setting declares, and describe that object."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from functools import partial
from typing import Any, get_args, get_origin

from flsel.arguments.messages import alternatives


def is_a(value: Any, hint: Any) -> bool:
    """Tell whether a value is what a type asks for; numbers, texts and their lists are judged elsewhere."""
    return any(_is(value, part) for part in alternatives(hint))


def objects(hint: Any, name: str, default: Any) -> str:
    """Say which objects a type asks for, with an example where the default is one."""
    said = " or ".join(_words(part) for part in alternatives(hint))
    # Python 3.10 takes Callable[..., Module] for a class.
    if get_origin(hint) is None and inspect.isclass(hint) and default is not MISSING:
        return f"{said}, such as {name}={type(default).__name__}()"
    return said


def _is(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Callable:
        return _makes(value, inner[1])
    if origin in (tuple, list):
        return isinstance(value, tuple | list) and all(is_a(item, inner[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    # Numbers and choices are judged elsewhere, with their ranges.
    return origin in (int, float, bool) or not inspect.isclass(origin) or isinstance(value, origin)


def _makes(value: Any, base: Any) -> bool:
    """Tell whether a value can be called for an object of a class, as far as it shows."""
    made = value.func if isinstance(value, partial) else value
    if inspect.isclass(made):
        return base.__name__ == "Callback" or issubclass(made, base)
    return callable(made)


def _words(hint: Any) -> str:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Callable:
        return f"a class or a function that makes {_a(inner[1])}"
    if origin in (tuple, list):
        return f"a list, each item {'text' if inner[0] is str else _words(inner[0])}"
    if origin in (dict, Mapping):
        return "a mapping of names to values"
    return "null" if hint is type(None) else f"{_a(hint)} object"


def _a(made: type) -> str:
    return f"{'an' if made.__name__.startswith(('A', 'E', 'I', 'O', 'Up')) else 'a'} {made.__name__}"
