"""The settings by key, with their declarations."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from flsel.arguments import Argument, arguments
from flsel.config.plugin import Plugin, items, plugin
from flsel.config.run_settings import RunSettings


@functools.cache
def keys() -> Mapping[str, Argument]:
    """Return every setting by its dotted key; groups of settings are left out."""
    return keys_of(RunSettings)


def keys_of(made: type, above: str = "") -> dict[str, Argument]:
    """Return the settings that a dataclass declares, by dotted key."""
    found = dict[str, Argument]()
    for name, argument in arguments(made).items():
        inner = is_dataclass(argument.hint)
        found |= keys_of(argument.hint, f"{above}{name}.") if inner else {f"{above}{name}": argument}
    return found


@functools.cache
def groups() -> frozenset[str]:
    """Return the dotted keys of the groups of settings, such as ``data`` and ``data.synthetic``."""
    return frozenset(key[:at] for key in keys() for at, letter in enumerate(key) if letter == ".")


@functools.cache
def plugins() -> Mapping[str, Plugin]:
    """Return the settings whose value is one class, by dotted key."""
    found = {key: plugin(argument.hint) for key, argument in keys().items()}
    return {key: asked for key, asked in found.items() if asked is not None}


@functools.cache
def explained() -> Mapping[str, Plugin]:
    """Return the settings whose value is a class or a list of classes, by dotted key."""
    found = {key: plugin(argument.hint) or items(argument.hint) for key, argument in keys().items()}
    return {key: asked for key, asked in found.items() if asked is not None}


@functools.cache
def defaults() -> Mapping[str, Any]:
    """Return the default of every setting that is a class, as a YAML file holds it."""
    described = RunSettings().to_dict()
    return {key: functools.reduce(dict.__getitem__, key.split("."), described) for key in plugins()}
