"""A search space: dotted keys of the settings, each with a range, and conditions between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from typing import Any, Literal

import optuna

from flsel.arguments import Tunable, alternatives, arguments
from flsel.config.schema import plugins
from flsel.errors import UserError
from flsel.files.shipped import SEARCH, shipped
from flsel.files.yaml import read_yaml

Value = bool | int | float | str | None
Kind = Literal["uniform", "loguniform", "int", "quantised", "choice"]
Settings = dict[str, Value]

_ABSENT: Any = object()
_MOST_GRID = 10_000

KEPT = "kept"
"""Attribute of a study's trial: the settings that it leaves as the config has them."""


@dataclass(frozen=True)
class Dimension:
    """One setting to search over.

    Attributes:
        key: Dotted key of the setting, as on the command line.
        kind: ``uniform``, ``loguniform``, ``int``, ``quantised`` (uniform in steps) or ``choice``.
        low: Smallest value, for a number.
        high: Largest value, for a number; included.
        step: Distance between values, for ``quantised`` and ``int``.
        log: Search whole numbers on a logarithmic scale.
        values: What to choose from.
        when: The dimension exists where these settings have one of these values.
        init: Value that is tried first, before the config's own or the class's default.
    """

    key: str
    kind: Kind
    low: float = math.nan
    high: float = math.nan
    step: float | None = None
    log: bool = False
    values: tuple[Value, ...] = ()
    when: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    init: Value = None

    @property
    def name(self) -> str:
        """Name in the study: the key, with its condition where it has one."""
        conditions = (f"{key}={'|'.join(map(str, values))}" for key, values in self.when)
        return f"{self.key} [{', '.join(conditions)}]" if self.when else self.key

    def applies(self, settings: Mapping[str, Value]) -> bool:
        """Tell whether the dimension exists where these settings hold."""
        return all(settings.get(key, _ABSENT) in values for key, values in self.when)

    def holds(self, value: Value) -> bool:
        """Tell whether a value is one of those searched over."""
        if self.kind == "choice":
            return any(value == item and type(value) is type(item) for item in self.values)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        step = 1 if self.kind == "int" and self.step is None else self.step
        steps = 0.0 if step is None else (value - self.low) / step
        return self.low <= value <= self.high and math.isclose(steps, round(steps), abs_tol=1e-9)

    def suggest(self, trial: optuna.trial.BaseTrial) -> Value:
        """Let a study's trial choose a value."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.name, self.values)
        if self.kind == "int":
            step = int(self.step or 1)
            return trial.suggest_int(self.name, int(self.low), int(self.high), step=step, log=self.log)
        if self.kind == "quantised":
            return trial.suggest_float(self.name, self.low, self.high, step=self.step)
        return trial.suggest_float(self.name, self.low, self.high, log=self.kind == "loguniform")

    def ends(self) -> tuple[Value, ...]:
        """Return the values that bound the dimension: all choices, or the smallest and the largest number."""
        if self.kind == "choice":
            return self.values
        if self.kind == "int":
            return int(self.low), int(self.high)
        return self.low, self.high

    def grid(self) -> list[Value]:
        """List all values.

        Raises:
            UserError: If they cannot be listed.
        """
        if self.step or self.kind == "int":
            count = (self.high - self.low) / (self.step or 1)
            if count >= _MOST_GRID:
                raise UserError(
                    f"space {self.key} must have at most {_MOST_GRID:,} values for the sampler grid, "
                    f"got {count + 1:,.0f}."
                )
        if self.kind == "choice":
            return list(self.values)
        if self.kind == "int" and not self.log:
            return list(range(int(self.low), int(self.high) + 1, int(self.step or 1)))
        if self.kind == "quantised" and self.step:
            count = round((self.high - self.low) / self.step)
            return [min(self.low + n * self.step, self.high) for n in range(count + 1)]
        raise UserError(
            f"space {self.key} must be a choice, int or quantised for the sampler grid, which is {self.kind}."
        )


@dataclass(frozen=True)
class Space:
    """All dimensions of a sweep; called by a study's trial, it returns the settings to change.

    Attributes:
        dimensions: In an order in which conditions come after what they depend on.
        fixed: Settings of the config that conditions refer to and that no dimension changes.
    """

    dimensions: tuple[Dimension, ...]
    fixed: tuple[tuple[str, Value], ...] = ()

    def __call__(self, trial: optuna.trial.BaseTrial) -> Settings:
        """Suggest settings by dotted key, those of the classes first."""
        kept = trial.user_attrs.get(KEPT, ())
        settings: Settings = {}
        for dimension in self.dimensions:
            if dimension.name not in kept and dimension.applies(dict(self.fixed) | settings):
                settings[dimension.key] = dimension.suggest(trial)
        return settings

    def conditions(self, dimension: Dimension) -> Settings:
        """Return settings under which a dimension exists, besides those that the config has."""
        fixed, found = dict(self.fixed), dict[str, Value]()
        for key, values in dimension.when:
            if fixed.get(key, _ABSENT) not in values:
                # What a condition refers to may have conditions itself.
                for other in self.dimensions:
                    if other.key == key and other.holds(values[0]):
                        found = self.conditions(other) | found
                        break
                found[key] = values[0]
        return found

    def needed(self, settings: Mapping[str, Value]) -> Settings:
        """Return a value for each argument without a default of the classes that settings choose."""
        found = Settings()
        for dimension in self.dimensions:
            top = _class_above(dimension.key)
            chosen = settings.get(top)
            if chosen is None or not dimension.applies(dict(self.fixed) | dict(settings)):
                continue
            if _default(top, chosen, dimension.key) is MISSING:
                found[dimension.key] = dimension.ends()[0]
        return found

    def first_points(self, config: Mapping[str, Any]) -> Iterator[tuple[dict[str, Value], list[str]]]:
        """List what is tried before anything is searched: known values, the config's own, classes' defaults.

        Args:
            config: The config as plain values.

        Yields:
            Values by dimension's name, and the names of dimensions that are left as the config has them,
            since they do not hold its value (a temperature ``auto``, say). First comes the config's own
            point with the dimensions' ``init``, then the same without, then one for each other class that
            is searched over.
        """
        seen = list[Settings]()
        for chosen, known in self._starts(config):
            initial = partial(self._initial, config=config, chosen=chosen, known=known)
            settings, point, kept = self.point(initial)
            if settings not in seen:
                seen.append(settings)
                yield point, kept

    def point(self, value_of: Callable[[Dimension], Any]) -> tuple[Settings, dict[str, Value], list[str]]:
        """Return the point of the space at which settings lie.

        Args:
            value_of: Returns the setting of a dimension; ``MISSING`` leaves it to be drawn.

        Returns:
            The settings; the values of dimensions that hold them, by name; the names of the other dimensions.
        """
        settings, point, kept = Settings(), dict[str, Value](), list[str]()
        for dimension in self.dimensions:
            if not dimension.applies(dict(self.fixed) | settings):
                continue
            value = value_of(dimension)
            if value is MISSING:
                continue
            settings[dimension.key] = value
            if dimension.holds(value):
                point[dimension.name] = value
            else:
                kept.append(dimension.name)
        return settings, point, kept

    def _starts(self, config: Mapping[str, Any]) -> Iterator[tuple[Settings, bool]]:
        """Yield the classes of each first point, and whether it takes the values of ``init``."""
        yield {d.key: d.init for d in self.dimensions if d.key in plugins() and d.init is not None}, True
        yield {}, False
        for dimension in self.dimensions:
            if dimension.key in plugins() and dimension.kind == "choice":
                own = named(dimension.key, lookup(config, dimension.key))
                yield from (({dimension.key: value}, True) for value in dimension.values if value != own)

    def _initial(self, dimension: Dimension, config: Mapping[str, Any], chosen: Settings, known: bool) -> Any:
        if dimension.key in chosen:
            return chosen[dimension.key]
        if known and dimension.init is not None:
            return dimension.init
        top = _class_above(dimension.key)
        if top in chosen:
            return _default(top, chosen[top], dimension.key)
        return named(dimension.key, lookup(config, dimension.key))


def auto_space(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is searched for the config's selector, as a space file has it.

    It is the shipped space of the selector, or the ranges that a class without one declares.

    Args:
        config: The config as plain values.

    Raises:
        UserError: If there is neither.
    """
    made = plugins()["selector"].find("selector", config["selector"]["class_path"])
    home, _, name = made.__module__.rpartition(".")
    if home == plugins()["selector"].home:
        files = {file.name: file.path for file in shipped(SEARCH)}
        if name in files:
            return dict(read_yaml(files[name]))
    found = {f"selector.{name}": _entry(hint) for name, hint in declared(made).items()}
    if not found:
        raise UserError(
            f"space auto has nothing to search: {made.__name__} declares no range; name a file, --space FILE."
        )
    return found


def declared(made: type) -> dict[str, tuple[Tunable, bool]]:
    """Return the search ranges that a class declares, by argument, and whether it is a whole number."""
    found = arguments(made).values()
    return {
        each.name: (each.tunable, float not in alternatives(each.hint) and int in alternatives(each.hint))
        for each in found
        if each.tunable is not None
    }


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key in a config of plain values, or None."""
    value: Any = config
    for part in key.split("."):
        if isinstance(value, Mapping) and "class_path" in value and part not in ("class_path", "init_args"):
            value = value.get("init_args", {})
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def named(key: str, value: Any) -> Any:
    """Return a setting's value as spaces write it: a shipped class's name, another class's import path."""
    if key not in plugins():
        return value
    path = value.get("class_path") if isinstance(value, Mapping) else value
    return plugins()[key].named(path) if isinstance(path, str) else path


def _entry(declared: tuple[Tunable, bool]) -> dict[str, Any]:
    tunable, whole = declared
    kind = "int" if whole else "loguniform" if tunable.log else "uniform"
    entry = {"type": kind, "low": tunable.low, "high": tunable.high}
    return {**entry, "log": True} if whole and tunable.log else entry


def _class_above(key: str) -> str:
    """Return the key of the class whose argument a setting is; an empty one if it is none's."""
    return next((top for top in plugins() if key.startswith(f"{top}.")), "")


def _default(top: str, name: Value, key: str) -> Any:
    """Return the default of a class's argument, or ``MISSING``; None where it has no such argument."""
    made = plugins()[top].find(top, str(name))
    known = arguments(made).get(key.removeprefix(f"{top}."))
    return None if known is None else known.default


def ordered(dimensions: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """Sort dimensions so that each comes after those it depends on.

    Raises:
        UserError: If they depend on one another in a circle.
    """
    left, done = list(dimensions), list[Dimension]()
    while left:
        waiting = {dimension.key for dimension in left}
        ready = [d for d in left if not waiting & {key for key, _ in d.when}]
        if not ready:
            raise UserError(f"space {left[0].key} depends on itself through its `when`.")
        done += sorted(ready, key=lambda d: d.key.count("."))
        left = [d for d in left if d not in ready]
    return tuple(done)
