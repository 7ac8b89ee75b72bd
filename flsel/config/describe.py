"""Turn run settings back into the plain values that the YAML file holds."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import fields
from enum import Enum
from functools import partial
from typing import Any

from flsel.availability import Availability
from flsel.config.run import RunConfig
from flsel.errors import UserError
from flsel.objectives import Objective
from flsel.partition import Partition
from flsel.selector import Selector

PLUGINS = (Selector, Objective, Partition, Availability)
# Settings that say where a run is shown, not what it computes.
PRESENTATION = ("track", "callbacks", "output", "quiet")


def describe(config: RunConfig) -> dict[str, Any]:
    """Describe a run by plain values: what ``config.yaml`` holds and ``flsel train --config`` reads.

    Raises:
        UserError: If something in it has no import path, such as a lambda.
    """
    return {f.name: _plain(getattr(config, f.name), f.name) for f in fields(config)}


def fingerprint(described: dict[str, Any]) -> str:
    """Hash what determines a run's results; where it is written and tracked does not enter."""
    relevant = {key: value for key, value in described.items() if key not in PRESENTATION}
    return hashlib.sha256(json.dumps(_canonical(relevant), sort_keys=True).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Write 1 and 1.0 alike: which of them a YAML file holds depends on who wrote it."""
    if isinstance(value, dict):
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _plain(value: Any, key: str) -> Any:
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, key) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, PLUGINS):
        names = inspect.signature(type(value)).parameters
        return _spec(type(value), {name: getattr(value, name) for name in names}, key)
    if isinstance(value, partial):
        # The parser puts what is built behind a callable of its own, as an argument of the partial.
        made = next((item for item in (*value.args, value.func) if _importable(item)), None)
        if made is not None:
            return _spec(made, value.keywords, key)
    if _importable(value):
        return _spec(value, {}, key)
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _plain(getattr(value, f.name), f"{key}.{f.name}") for f in fields(value)}
    raise UserError(f"{key} must be a class or a function that can be imported, got {value!r}.")


def _importable(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _spec(made: Any, given: dict[str, Any], key: str) -> Any:
    path, plain = _path(made, key), dict[str, Any]()
    if inspect.isfunction(made) and not given:
        return path
    defaults = _defaults(made) if inspect.isclass(made) else {}
    for name, value in (defaults | given).items():
        try:
            plain[name] = _argument(value, f"{key}.{name}")
        except UserError:
            # A default that YAML cannot hold need not be written: the class has it.
            if value is not defaults.get(name, made):
                raise
    return {"class_path": path} | ({"init_args": plain} if plain else {})


def _defaults(made: type) -> dict[str, Any]:
    # The parser writes out the defaults of what it parsed; settings made in Python must look the same.
    parameters = inspect.signature(made).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _argument(value: Any, key: str) -> Any:
    # An argument that is itself a class or a function is written as its import path alone.
    return _path(value, key) if _importable(value) else _plain(value, key)


def _path(made: Any, key: str) -> str:
    if "<" in made.__qualname__:
        raise UserError(f"{key} must be importable by name, got {made.__module__}.{made.__qualname__}.")
    return f"{made.__module__}.{made.__qualname__}"
