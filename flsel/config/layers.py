"""Settings of several places laid over each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flsel.arguments import alternatives, shown
from flsel.config.plugin import class_and_arguments
from flsel.config.schema import defaults, explained, groups, keys, plugins
from flsel.errors import UserError, closest, located, short
from flsel.files.shipped import PAPERS, RUNS, find
from flsel.files.yaml import loaded, read_yaml


@dataclass
class Layers:
    """The settings so far.

    Attributes:
        values: What is given, by key; a class is ``{class_path, init_args}``.
        sources: The file that set a key, or an argument of a class, last.
        implied: Settings of which only arguments are given, and whose class is that of :data:`IMPLIED`.
    """

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str | None] = field(default_factory=dict)
    implied: set[str] = field(default_factory=set)

    def lay(self, settings: Mapping[Any, Any], source: str | None = None) -> None:
        """Lay nested settings over those before.

        Raises:
            UserError: If a key is unknown or set twice, or a class cannot be found.
        """
        with located(source):
            given = by_key(settings)
        self.lay_each(given.items(), source)

    def lay_each(self, given: Iterable[tuple[str, Any]], source: str | None = None) -> None:
        """Lay settings by dotted key, a class before its arguments, in whichever order they come.

        Raises:
            UserError: If a key is unknown or a class cannot be found.
        """
        for key, value in sorted(given, key=lambda setting: setting[0].count(".")):
            with located(source):
                self._set(key, value)
            self.sources[key] = source

    def lay_file(self, name: str) -> None:
        """Lay a YAML file, given by its path or by the name of one that flsel brings along.

        Raises:
            UserError: As :meth:`lay`, or if the file is unreadable or sets a key twice.
        """
        with located(name):
            read = read_yaml(find(name, RUNS, PAPERS))
        self.lay(read, name)

    def source(self, message: str) -> str | None:
        """Return the file that last set the key with which a message begins."""
        key = message.partition(" ")[0]
        while key and key not in self.sources:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return self.sources.get(key)

    def _set(self, key: str, value: Any) -> None:
        """Set one key, a class, or one of its arguments (``selector.d``, ``data.init_args.classes``)."""
        above = itertools.accumulate(key.split("."), "{}.{}".format)
        top = next((known for known in above if known in keys()), None)
        if top is None:
            raise unknown_key(key)
        inside = key[len(top) + 1 :]
        if top in plugins():
            self._set_class(top, inside.removeprefix("init_args").removeprefix("."), loaded(key, value))
        elif inside and keys()[top].hint == dict[str, Any]:
            self.values[top] = _nested(self.values.get(top, {}), inside.split("."), value)
        elif inside and top in explained():
            item = f"[{{class_path: NAME, init_args: {{{inside}: {short(value, 60)}}}}}]"
            raise UserError(f"{top} is a list of classes: write {top}: {item}.")
        elif inside:
            raise unknown_key(key)
        else:
            self.values[top] = value

    def _set_class(self, key: str, inside: str, value: Any) -> None:
        before: Mapping[str, Any] = self.values.get(key, defaults()[key]) or {}
        taken = before.get("init_args", {})
        if inside not in ("", "class_path"):
            if not before and key not in IMPLIED:
                raise UserError(f"{key} must name a class before its argument {inside} is set: --{key} NAME.")
            if not before:
                before = IMPLIED[key]
                taken = before["init_args"]
                self.implied.add(key)
            self.values[key] = {**before, "init_args": _nested(taken, inside.split("."), value)}
            return
        if value in (None, "null") and type(None) in alternatives(keys()[key].hint):
            self.values[key] = None
            return
        name, given = class_and_arguments(key, value, before.get("class_path"))
        if name is None and given:
            for argument, each in given.items():
                self._set_class(key, str(argument), each)
            return
        made = plugins()[key].find(key, name)
        path = f"{made.__module__}.{made.__qualname__}"
        self.implied.discard(key)
        # A class that replaces another starts from its own defaults.
        kept = taken if path == before.get("class_path") else {}
        self.values[key] = {"class_path": path, "init_args": {**kept, **given}}


IMPLIED: Mapping[str, Mapping[str, Any]] = {
    "local.optimizer": {"class_path": "torch.optim.sgd.SGD", "init_args": {"lr": 0.1}}
}
"""What null stands for, where that is a class whose arguments may be set without naming it."""

SHORT: Mapping[str, str] = {"folder": "output.dir", "name": "output.name"}
"""Short names that every command takes for settings; sweeps and comparisons have settings of these names."""

RENAMED = {"budget": "clients_per_round"}
"""Settings of files that earlier versions wrote, by the name that each has now."""


def unknown_key(key: str) -> UserError:
    """Return the error that says that there is no such setting, and which one was probably meant."""
    if key in SHORT:
        return UserError(f"{key} is called {SHORT[key]} in a file of a run's settings.")
    if key in RENAMED:
        return UserError(f"{key} is called {RENAMED[key]}: rename the key.")
    group, _, last = key.rpartition(".")
    inside = [name for name in keys() if name.startswith(f"{key if key in groups() else group}.")]
    if key in groups():
        return UserError(f"{key} is a group of settings: set {inside[0]}, {inside[1]} and so on.")
    by_last = {name.rpartition(".")[2]: name for name in reversed(inside or [*keys()])}
    close = closest(last, by_last)
    known = ", ".join(name.removeprefix(f"{group}.") for name in inside)
    listed = f"{group} has {known}." if inside else "--help lists them."
    advice = f"did you mean {by_last[close]}?" if close else listed
    return UserError(f"there is no setting {shown(key)[1:-1]}; {advice}")


def by_key(settings: Mapping[Any, Any]) -> dict[str, Any]:
    """Return nested settings by dotted key; an argument of a class is named without ``init_args``.

    Raises:
        UserError: If one is set twice.
    """
    found = dict[str, Any]()
    for key, value in _flat(settings):
        top, _, argument = key.partition(".init_args.")
        key = f"{top}.{argument}" if argument and top in plugins() else key
        if key in found:
            raise UserError(f"{key} is set twice, by its whole name and in another way; keep one of them.")
        found[key] = value
    for key, value in found.items():
        inside = value.get("init_args") if key in plugins() and isinstance(value, Mapping) else value
        for name in inside if isinstance(inside, Mapping) else ():
            if f"{key}.{name}" in found:
                raise UserError(f"{key}.{name} is set twice, in a mapping and by its name; keep one of them.")
    return found


def _flat(settings: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting by its dotted key, those below groups by their whole names."""
    for name, value in settings.items():
        key = f"{above}{name}"
        if key in groups() and isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _nested(before: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Set a value deep in a mapping, which stays as it is."""
    first, *rest = path
    if rest:
        inner = before.get(first)
        value = _nested(inner if isinstance(inner, Mapping) else {}, rest, value)
    return {**before, first: value}
