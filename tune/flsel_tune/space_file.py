"""Read a search space: a YAML file of dotted keys."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from flsel.arguments import shown
from flsel.arguments.messages import sizes
from flsel.arguments.ranges import absurd
from flsel.config.schema import keys, plugins
from flsel.errors import UserError, located, meant
from flsel.files.shipped import SEARCH, find
from flsel.files.yaml import read_yaml
from flsel_tune.space import Dimension, Space, auto_space, lookup, named, ordered
from flsel_tune.space_checks import check_conditions, check_dimension, check_key

FIELDS: Mapping[str, tuple[str, ...]] = {
    "uniform": ("low", "high"),
    "loguniform": ("low", "high"),
    "int": ("low", "high", "step", "log"),
    "quantised": ("low", "high", "step"),
    "choice": ("values",),
}
_OPTIONAL = ("step", "log")
_MOST_VALUES = 1000  # Each of them is checked before the first trial.
_ALWAYS = ("type", "when", "init")


def read_space(name: str) -> Mapping[Any, Any]:
    """Read a space file as plain values.

    Args:
        name: Path of the file, or the name of a shipped one.

    Raises:
        UserError: If it is neither, or not readable YAML.
    """
    with located(f"space {name}"):
        return read_yaml(find(name, SEARCH))


def space_entries(space: object, config: Mapping[str, Any]) -> tuple[str, Mapping[Any, Any]]:
    """Return the name of a space, as a sweep's settings have it, and its entries.

    Args:
        space: A mapping, a file, a name, or ``auto``.
        config: The config as plain values.

    Raises:
        UserError: If it is none of them, or cannot be read.
    """
    if isinstance(space, Mapping):
        return "space.yaml", {key: _written(entry) for key, entry in space.items()}
    if not isinstance(space, str | PathLike):
        raise UserError(f"space must be a mapping, a file or the name of a space, got {shown(space)}.")
    name = fspath(space)
    return name, auto_space(config) if name == "auto" else read_space(name)


def make_space(entries: Mapping[Any, Any], config: Mapping[str, Any]) -> Space:
    """Make a space of a file's entries.

    Args:
        entries: By dotted key an entry, or a list of entries whose conditions exclude one another.
        config: The config as plain values.

    Raises:
        UserError: If an entry is malformed.
    """
    dimensions = [
        _dimension(_key(key), _resolved(key, entry, config))
        for key, given in entries.items()
        for entry in (given if isinstance(given, list) else [given])
    ]
    if not dimensions:
        raise UserError("space must have at least one setting to search over.")
    for dimension in dimensions:
        check_key(dimension, dimensions)
    keys = {dimension.key for dimension in dimensions}
    referred = {key for dimension in dimensions for key, _ in dimension.when} - keys
    fixed = tuple((key, named(key, lookup(config, key))) for key in sorted(referred))
    check_conditions(dimensions, dict(fixed))
    return Space(ordered(dimensions), fixed)


def to_plain(space: Space) -> dict[str, Any]:
    """Write a space as its file has it; a key with several entries gets a list of them."""
    plain: dict[str, list[dict[str, Any]]] = {}
    for dimension in space.dimensions:
        plain.setdefault(dimension.key, []).append(_plain(dimension))
    return {key: found[0] if len(found) == 1 else found for key, found in plain.items()}


def _written(value: Any) -> Any:
    """Write what is given from Python as a file has it: classes by their import paths."""
    if isinstance(value, Mapping):
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    return f"{value.__module__}.{value.__qualname__}" if inspect.isclass(value) else value


def _plain(dimension: Dimension) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": dimension.kind}
    for name in FIELDS[dimension.kind]:
        value = getattr(dimension, name)
        if value is not None and value is not False:
            entry[name] = list(value) if name == "values" else value
    if dimension.when:
        entry["when"] = {key: list(values) for key, values in dimension.when}
    if dimension.init is not None:
        entry["init"] = dimension.init
    return entry


def _resolved(key: Any, entry: Any, config: Mapping[str, Any]) -> Any:
    """Put the run's own number in the place of a setting that an end of a range names."""
    if not isinstance(entry, Mapping) or entry.get("type") == "choice":
        return entry
    found = dict(entry)
    for name in ("low", "high", "init"):
        named = entry.get(name)
        if isinstance(named, str) and named in keys():
            number = lookup(config, named)
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise UserError(
                    f"space {key}: {name} is the run's {named}, which must be a number, got {shown(number)}."
                )
            found[name] = number
    return found


def _dimension(key: str, entry: Any) -> Dimension:
    if not isinstance(entry, Mapping) or "type" not in entry:
        raise UserError(
            f"space {key} must be an entry such as {{type: uniform, low: 0, high: 1}}, got {entry!r}."
        )
    kind = entry["type"]
    if kind not in tuple(FIELDS):
        raise UserError(
            f"space {key}: type must be one of {', '.join(FIELDS)}, got {kind!r}{meant(kind, FIELDS)}"
        )
    allowed = (*_ALWAYS, *FIELDS[kind])
    for name in entry:
        if name not in allowed:
            listed = ", ".join(allowed)
            raise UserError(
                f"space {key}: {name} is not part of {kind}, which has {listed}{meant(name, allowed)}"
            )
    for name in FIELDS[kind]:
        if name not in entry and (name not in _OPTIONAL or (kind, name) == ("quantised", "step")):
            raise UserError(f"space {key}: {kind} needs {name}.")
    made = Dimension(
        key=key,
        kind=kind,
        low=_number(key, "low", entry.get("low")),
        high=_number(key, "high", entry.get("high")),
        step=None if entry.get("step") is None else _number(key, "step", entry["step"]),
        log=_flag(key, entry.get("log", False)),
        values=_values(key, "values", entry["values"], of=key) if kind == "choice" else (),
        when=_conditions(key, entry.get("when", {})),
        init=_name(key, entry.get("init")),
    )
    check_dimension(made)
    return made


def _number(key: str, name: str, value: Any) -> float:
    if value is None:
        return math.nan
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or absurd(value):
        raise UserError(f"space {key}: {name} must be a number{sizes(value)}, got {shown(value)}.")
    return float(value)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"space {key}: log must be true or false, got {value!r}.")
    return value


def _values(key: str, name: str, given: Any, *, of: str) -> tuple[Any, ...]:
    """Return what may stand for a setting (``of``), in an entry's part of some name."""
    values = tuple(_name(of, value) for value in (given if isinstance(given, list) else [given]))
    if not values or not all(
        value is None or isinstance(value, bool | int | float | str) for value in values
    ):
        raise UserError(
            f"space {key}: {name} must be a list of numbers, texts, true, false or null, got {given!r}."
        )
    wild = next((value for value in values if not isinstance(value, str) and absurd(value)), None)
    if wild is not None:
        raise UserError(f"space {key}: {name} must be numbers{sizes(wild)}, got {shown(wild)}.")
    if len(values) > _MOST_VALUES:
        raise UserError(f"space {key}: {name} must be at most {_MOST_VALUES}, got {len(values)}.")
    if len({(type(value), value) for value in values}) < len(values):
        raise UserError(f"space {key}: {name} must differ from one another, got {given!r}.")
    return values


def _conditions(key: str, when: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    if not isinstance(when, Mapping):
        raise UserError(f"space {key}: when must be a mapping such as {{selector: HiCS}}, got {when!r}.")
    return tuple(
        (_key(name), _values(key, f"when.{name}", given, of=_key(name))) for name, given in when.items()
    )


def _key(given: Any) -> str:
    """Return a setting's key in short: named in two ways it would pass for two settings."""
    top, _, inside = str(given).removesuffix(".class_path").partition(".init_args.")
    if top not in plugins():
        return str(given)
    return f"{top}.{inside}" if inside else top


def _name(key: str, value: Any) -> Any:
    return named(key, value) if isinstance(value, str) else value
