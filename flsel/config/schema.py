"""The settings' keys, their types, and the classes that fit where a class is asked for."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lightning.pytorch import Callback
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flsel.availability import Availability
from flsel.config.run import RunConfig
from flsel.errors import UserError, imported
from flsel.objectives import Objective
from flsel.partition import Partition
from flsel.selector import Selector

# Where the classes live that can be named without a module path.
HOMES: Mapping[type, str] = {
    Selector: "flsel.selectors",
    Partition: "flsel.partition",
    Availability: "flsel.availability",
    Objective: "flsel.objectives",
    nn.Module: "flsel.models",
    Optimizer: "torch.optim",
    LRScheduler: "torch.optim.lr_scheduler",
    Callback: "lightning.pytorch.callbacks",
}

_RULES = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false each"),
    str: ("text", "texts"),
    type(None): ("null", "null each"),
}


@dataclass(frozen=True)
class Plugin:
    """A setting whose value is a class with arguments, ``{class_path, init_args}``.

    Attributes:
        base: What the class must be derived from.
        given: Leading constructor arguments that the run gives and the settings do not.
        factory: Whether it is built later, so that a function which builds it fits too.
    """

    base: type
    given: int = 0
    factory: bool = False

    def classes(self) -> dict[str, type]:
        """Return the classes that need no module path, by name."""
        home = HOMES.get(self.base, self.base.__module__)
        _import_all(home)
        found = sorted(_concrete(self.base), key=lambda made: made.__name__)
        return {made.__name__: made for made in found if f"{made.__module__}.".startswith(f"{home}.")}

    def find(self, path: str) -> Any:
        """Return the class that a name or an import path stands for, or None."""
        if "." not in path:
            return self.classes().get(path)
        try:
            return imported("a class", path)
        except UserError:
            return None

    def arguments(self, made: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
        """Return the arguments that ``made`` takes from the settings, or None if it takes any."""
        try:
            parameters = list(inspect.signature(made).parameters.values())[self.given :]
        except ValueError:  # made in C
            return None
        if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters):
            return None
        return {p.name: p for p in parameters}


@functools.cache
def keys() -> Mapping[str, Any]:
    """Return the type of every setting by its dotted key; groups of settings are left out."""
    return dict(_leaves(RunConfig, ""))


@functools.cache
def groups() -> frozenset[str]:
    """Return the dotted keys of the groups of settings, such as ``data`` and ``data.synthetic``."""
    return frozenset(key[:at] for key in keys() for at, letter in enumerate(key) if letter == ".")


def plugin(hint: Any) -> Plugin | None:
    """Return what class a type asks for, or None if it asks for a plain value."""
    for part in _alternatives(hint):
        if get_origin(part) is Callable:
            given, made = get_args(part)
            return Plugin(made, len(given), factory=True)
        if inspect.isclass(part) and any(issubclass(part, base) for base in HOMES):
            return Plugin(part)
    return None


@functools.cache
def plugins() -> Mapping[str, Plugin]:
    """Return the settings whose value is one class, by dotted key."""
    found = {key: plugin(hint) for key, hint in keys().items()}
    return {key: asked for key, asked in found.items() if asked is not None}


def items(hint: Any) -> Plugin | None:
    """Return what class a list type asks for in each of its items, or None if it is no such list."""
    return plugin(get_args(hint)[0]) if get_origin(hint) in (tuple, list) else None


def allows_null(hint: Any) -> bool:
    """Tell whether a type has null among its values."""
    return hint is Any or type(None) in _alternatives(hint)


def rule(hint: Any) -> str:
    """Say which values a type allows, in words: ``a whole number or null``."""
    parts = [_rule(part) for part in _alternatives(hint)]
    # A type that cannot be written in YAML, such as a tensor, is left out beside one that can.
    plain = [part for part in parts if not part.startswith("of type ")]
    return " or ".join(dict.fromkeys(plain or parts))


def _rule(hint: Any) -> str:
    if hint in _RULES:
        return _RULES[hint][0]
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    asked = plugin(hint)
    if asked is not None:
        return one_of(asked)
    origin = get_origin(hint) or hint
    if origin in (dict, Mapping):
        return "a mapping"
    if origin in (tuple, list, Sequence, Iterable):
        inner = get_args(hint)
        each = items(hint)
        if each is not None:
            return f"a list, each item {one_of(each)}"
        return f"a list of {_RULES[inner[0]][1]}" if inner and inner[0] in _RULES else "a list"
    return f"of type {getattr(hint, '__name__', hint)}"


def one_of(asked: Plugin) -> str:
    """Name the classes that fit, in words."""
    home = HOMES.get(asked.base, asked.base.__module__)
    listed = f"one of {', '.join(asked.classes())}" if home.startswith("flsel.") else f"a class of {home}"
    return f"{listed}, or the import path of another {asked.base.__name__}"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _leaves(made: type, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, hint in get_type_hints(made).items():
        key = f"{prefix}{name}"
        if is_dataclass(hint) and plugin(hint) is None:
            yield from _leaves(hint, f"{key}.")  # type: ignore[arg-type]
        else:
            yield key, hint


def _import_all(home: str) -> None:
    """Import the public modules of a package of flsel, so that a class in a new file is found."""
    package = import_module(home)
    if home.startswith("flsel.") and hasattr(package, "__path__"):
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                import_module(f"{home}.{module.name}")


def _concrete(base: type) -> Iterator[type]:
    made: type
    for made in base.__subclasses__():
        if not inspect.isabstract(made) and not made.__name__.startswith("_"):
            yield made
        yield from _concrete(made)
