"""In which settings configs differ, and how a message writes it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from flsel.config import RunConfig
from flsel.config.schema import plugins
from flsel.runner.trackers.values import flat


def changes_between(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two configs: both values by dotted key, of plug-ins each argument.

    A setting that one of them lacks, as a run does that is older than the setting, has its default.
    """
    return pairs(filled(base), filled(other))


def pairs(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values, by key, where two mappings differ; None stands for a missing one."""
    return {
        key: (one.get(key), two.get(key))
        for key in dict.fromkeys((*one, *two))
        if one.get(key) != two.get(key)
    }


def filled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's values by dotted key, with defaults for what it lacks except arguments of classes."""
    return {**_defaults(), **flat(settings)}


@functools.cache
def _defaults() -> dict[str, Any]:
    classes = tuple(f"{key}." for key in plugins())
    return {key: value for key, value in flat(RunConfig().to_dict()).items() if not key.startswith(classes)}


def shown(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Write a difference of configs on one line: ``rounds 100 instead of 50, ...``."""
    return ", ".join(f"{key} {_word(two)} instead of {_word(one)}" for key, (one, two) in changes.items())


def _word(value: Any) -> str:
    return "null" if value is None else str(value)
