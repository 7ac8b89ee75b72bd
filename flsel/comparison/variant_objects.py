"""Make variants and scenarios of Python objects: selectors, settings and whole configs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from torch import nn

from flsel.arguments import Checked, arguments, shown
from flsel.arguments.spec import plain
from flsel.comparison.grid import Scenario, Variant
from flsel.comparison.parse_variants import (
    from_config,
    make_variant,
    read_grid,
    read_selectors,
    read_variants,
    scenarios_of,
)
from flsel.config import RunConfig, model_object
from flsel.config.layers import by_key
from flsel.errors import UserError
from flsel.selector import Selector

Variants = str | Sequence[Any] | Mapping[str, Any]
"""A file of variants, selectors or texts such as ``PowD:d=12``, or by name also settings or configs."""
_RULE = "a selector, a text such as 'PowD:d=12', a mapping of settings, a RunConfig or the path of a config"


def make_variants(given: Variants, base: Mapping[str, Any]) -> tuple[list[Variant], list[Any]]:
    """Make variants.

    Returns:
        The variants, and the model objects among their settings.

    Raises:
        UserError: If something is none, or has the name of another.
    """
    if isinstance(given, str):
        file = given.endswith((".yaml", ".yml"))
        return (read_variants(given, base) if file else read_selectors(given)), []
    if isinstance(given, Mapping):
        named = list(given.items())
    elif isinstance(given, Sequence):
        named = [(_name(item), item) for item in given]
    else:
        raise UserError(f"variants must be a list or a mapping by name, got {shown(given)}.")
    models = [model for _, entry in named for model in _models(entry)]
    return [_variant(name, entry, base) for name, entry in named], models


def make_scenarios(grid: Sequence[str] | Mapping[str, Sequence[Any]]) -> tuple[list[Scenario], list[Any]]:
    """Make the scenarios of a grid.

    Args:
        grid: By key a list of values, which may be objects, or texts as on the command line.

    Returns:
        The scenarios, and the model objects among their settings.

    Raises:
        UserError: If it is malformed.
    """
    if not isinstance(grid, Mapping):
        if isinstance(grid, str) or not all(isinstance(text, str) for text in grid):
            raise UserError(f"grid must be a mapping from keys to lists of values, got {shown(grid)}.")
        return read_grid(grid), []
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise UserError(f"grid {key} must be a list of values, got {shown(values)}.")
    axes = [(key, [(called(v), _plain(key, v)) for v in values]) for key, values in grid.items()]
    return scenarios_of(axes), [model for values in grid.values() for v in values for model in _models(v)]


def _variant(name: Any, entry: Any, base: Mapping[str, Any]) -> Variant:
    if isinstance(entry, RunConfig):
        return from_config(str(name), entry.to_dict(), base, str(name))
    if isinstance(entry, str) and not entry.endswith((".yaml", ".yml")):
        (read,) = read_selectors(entry)
        return Variant(str(name), read.changes)
    if _is_selector(entry):
        entry = {"selector": entry}
    if not isinstance(entry, Mapping | str):
        raise UserError(f"variants: {name} must be {_RULE}, got {shown(entry)}.")
    if isinstance(entry, Mapping):
        entry = {key: _plain(key, value) for key, value in by_key(entry).items()}
    return make_variant(name, entry, "variants", Path(), base)


def _is_selector(value: Any) -> bool:
    return isinstance(value, Selector) or (inspect.isclass(value) and issubclass(value, Selector))


def _name(item: Any) -> str:
    if isinstance(item, str):
        return Path(item).stem if item.endswith((".yaml", ".yml")) else item
    if not _is_selector(item):
        raise UserError(
            f"variants must be selectors or texts such as 'PowD:d=12' in a list, got {shown(item)}; give "
            "others by name, as in {'more steps': {'local.steps': 20}}."
        )
    return called(item)


def called(value: Any) -> str:
    """Return what tables call a value: a class with the arguments that are not its defaults."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(value.__name__)
    if isinstance(value, nn.Module):
        return type(value).__name__
    if not isinstance(value, Checked):
        return str(value)
    made: Any = type(value)
    own = [
        f"{name}={called(getattr(value, name))}"
        for name, argument in arguments(made).items()
        if argument.default is MISSING or getattr(value, name) != argument.default
    ]
    return ":".join([made.__name__, *own])


def _plain(key: str, value: Any) -> Any:
    """Write a setting as a file has it; a class stands for itself with its defaults."""
    if key == "model":
        value = model_object.described(value) or value
    if inspect.isclass(value) and issubclass(value, Checked):
        value = value()
    return plain(value, key)


def _models(entry: Any) -> list[Any]:
    if isinstance(entry, RunConfig):
        return [entry.model]
    if isinstance(entry, Mapping) and "model" in entry:
        return [entry["model"]]
    return [entry] if isinstance(entry, nn.Module) else []
