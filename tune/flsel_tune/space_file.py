"""Read a search space: a YAML file of dotted keys, checked against the settings before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from flsel.arguments import shown
from flsel.arguments.messages import sizes
from flsel.arguments.ranges import absurd
from flsel.config.fingerprint import PRESENTATION
from flsel.config.schema import keys, plugins
from flsel.errors import UserError, located, meant, short
from flsel.files.shipped import SEARCH, find
from flsel.files.yaml import read_yaml
from flsel_tune.space import Dimension, Space, auto_space, lookup, named, ordered

FIELDS: Mapping[str, tuple[str, ...]] = {
    "uniform": ("low", "high"),
    "loguniform": ("low", "high"),
    "int": ("low", "high", "step", "log"),
    "quantised": ("low", "high", "step"),
    "choice": ("values",),
}
_OPTIONAL = ("step", "log")
_MACHINE = "it says where and how a trial is shown or run, not what it computes"
_SAME = "trials are measured alike, or their values could not be compared"
# Settings, or groups of them, that are the same in all trials.
_OWN = {
    "seed": "every trial runs under --seeds",
    "rounds": "all trials of a sweep have as many, and a scheduler stops some early",
    "evaluation": _SAME,
    "data.validation": _SAME,
    **dict.fromkeys(("accelerator", "device", "threads", *PRESENTATION), _MACHINE),
}
_MOST_STEPS = 2**53  # What a number can count.
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


def make_space(entries: Mapping[Any, Any] | None, config: Mapping[str, Any]) -> Space:
    """Make a space of a file's entries.

    Args:
        entries: By dotted key an entry, or a list of entries whose conditions exclude one another; None for
            the ranges that the config's selector declares.
        config: The config as plain values.

    Raises:
        UserError: If an entry is malformed.
    """
    entries = auto_space(config) if entries is None else entries
    dimensions = [
        _dimension(_key(key), _resolved(key, entry, config))
        for key, given in entries.items()
        for entry in (given if isinstance(given, list) else [given])
    ]
    if not dimensions:
        raise UserError("space must have at least one setting to search over.")
    for dimension in dimensions:
        _check_key(dimension, dimensions)
    keys = {dimension.key for dimension in dimensions}
    referred = {key for dimension in dimensions for key, _ in dimension.when} - keys
    fixed = tuple((key, named(key, lookup(config, key))) for key in sorted(referred))
    _check_conditions(dimensions, dict(fixed))
    return Space(ordered(dimensions), fixed)


def check_space(space: Space, parses: Callable[[Mapping[str, Any]], object]) -> None:
    """Check that the settings accept every end of every dimension.

    Args:
        space: The space.
        parses: Parses the config with settings changed, and raises a UserError if it cannot.

    Raises:
        UserError: If a key is unknown or a value is refused.
    """
    for dimension in space.dimensions:
        for value in (*dimension.ends(), *([] if dimension.init is None else [dimension.init])):
            settings = {**space.conditions(dimension), dimension.key: value}
            try:
                parses(space.needed(settings) | settings)
            except UserError as error:
                raise UserError(f"space {dimension.key} at {_shown(value)}: {error}") from error.__cause__


def to_plain(space: Space) -> dict[str, Any]:
    """Write a space as its file has it; a key with several entries gets a list of them."""
    plain: dict[str, list[dict[str, Any]]] = {}
    for dimension in space.dimensions:
        plain.setdefault(dimension.key, []).append(_plain(dimension))
    return {key: found[0] if len(found) == 1 else found for key, found in plain.items()}


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
    _check(made)
    return made


def _check(dimension: Dimension) -> None:
    key, low, high = dimension.key, dimension.low, dimension.high
    if dimension.kind != "choice":
        if not low < high:
            raise UserError(f"space {key}: low must be below high, got {low:g} and {high:g}.")
        if (dimension.kind == "loguniform" or dimension.log) and low <= 0:
            raise UserError(f"space {key}: low must be above 0 on a logarithmic scale, got {low:g}.")
        numbers = (low, high, 1 if dimension.step is None else dimension.step)
        if dimension.kind == "int" and any(number != int(number) for number in numbers):
            raise UserError(f"space {key}: low, high and step must be whole numbers for type int.")
    if dimension.step is not None:
        _check_step(dimension)
    if dimension.log and dimension.step not in (None, 1):
        raise UserError(f"space {key}: step and log exclude one another.")
    if dimension.init is not None and not dimension.holds(dimension.init):
        raise UserError(f"space {key}: init must be one of the values searched over, got {dimension.init!r}.")


def _check_key(dimension: Dimension, dimensions: Iterable[Dimension]) -> None:
    """Refuse what the sweep itself sets, and entries of one key that could hold together."""
    key, when = dimension.key, dict(dimension.when)
    own = next((own for own in _OWN if f"{key}.".startswith(f"{own}.")), None)
    if own is not None:
        raise UserError(f"space {key} cannot be searched over: {_OWN[own]}.")
    for other in dimensions:
        if other is not dimension and other.key == key:
            others = dict(other.when)
            if not any(set(when[name]).isdisjoint(others[name]) for name in when.keys() & others.keys()):
                raise UserError(f"space {key} must have entries whose conditions exclude one another.")


def _check_conditions(dimensions: Iterable[Dimension], fixed: Mapping[str, Any]) -> None:
    """Refuse conditions that never hold: what depends on them would silently not be searched."""
    for dimension in dimensions:
        for key, values in dimension.when:
            others = [other for other in dimensions if other.key == key]
            for value in values if others else ():
                if not any(other.holds(value) for other in others):
                    raise UserError(
                        f"space {dimension.key}: when.{key} must be one of the values searched over, "
                        f"got {value!r}."
                    )
    unmet = [_unmet(dimension, fixed) for dimension in dimensions]
    if all(unmet):
        key, values = unmet[0][0]
        raise UserError(
            f"space has nothing to search: its `when` asks for {key} {' or '.join(map(str, values))}, "
            f"and the config has {fixed[key]}."
        )


def _unmet(dimension: Dimension, fixed: Mapping[str, Any]) -> list[tuple[str, tuple[Any, ...]]]:
    return [(key, values) for key, values in dimension.when if key in fixed and fixed[key] not in values]


def _check_step(dimension: Dimension) -> None:
    key, low, high, step = dimension.key, *map(_decimal, (dimension.low, dimension.high, dimension.step))
    if not 0 < step <= high - low:
        raise UserError(f"space {key}: step must be above 0 and at most high - low, got {float(step):g}.")
    if (high - low) / step > _MOST_STEPS:
        raise UserError(f"space {key}: step must be larger, got {float(step):g}: more than 2^53 values.")
    beyond = (high - low) % step
    if beyond:
        raise UserError(
            f"space {key}: high must be low and a number of steps, got {float(high):g}; "
            f"write {float(high - beyond):g}."
        )


def _decimal(number: float | None) -> Decimal:
    # As it is written, and as Optuna counts steps: in binary 0.3 - 0.1 is less than 0.2.
    return Decimal(str(number))


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


def _shown(value: Any) -> str:
    return "null" if value is None else short(value, 60)
