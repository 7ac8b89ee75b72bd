"""One place's settings, laid over those before: a YAML file, or the words of the command line."""

from __future__ import annotations

import inspect
import json
from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace, get_loader

from flsel.config.explain import explain, no_arguments, refuse_null, resolve, tidy, unknown_key
from flsel.config.schema import Plugin, groups, keys, plugins
from flsel.errors import UserError

Setting = tuple[str, Any]


@dataclass(frozen=True)
class Layer:
    """Settings that come from one place.

    Attributes:
        settings: Values by dotted key, in order; on the command line a text, or None for a key alone.
        source: The file, or None.
        words: Whether they are words of the command line.
    """

    settings: tuple[Setting, ...]
    source: str | None = None
    words: bool = False

    def apply(self, parser: ArgumentParser, base: Namespace) -> Namespace:
        """Parse the settings on top of ``base``, which stays as it is.

        Raises:
            ArgumentError: If one is refused.
        """
        base = _without_replaced(base, self.settings)
        if self.words:
            words = [f"--{key}" if value is None else f"--{key}={value}" for key, value in self.settings]
            parsed: Namespace = parser.parse_args(words, namespace=base)
        else:
            parsed = parser.parse_object(_nested(self.settings), namespace=base)
        return parsed

    def blame(self, parser: ArgumentParser, base: Namespace, error: ArgumentError) -> str:
        """Say which setting made :meth:`apply` fail with ``error``, and why."""
        for key, given in _by_setting(self.settings).items():
            empty = [name for name, value in given if self.words and value is None]
            if empty:
                return f"{empty[0]} needs a value: --{empty[0]} VALUE."
            part = Layer(tuple(given), self.source, self.words)
            try:
                base = part.apply(parser, base)
            except ArgumentError as refused:
                return explain(refused, key, _joined(key, given, _spec(base, key)))
        return tidy(error)


def from_words(settings: Iterable[Setting]) -> Layer:
    """Make a layer of the command line's settings, texts by dotted key."""
    # A class before its arguments, in whichever order they were typed.
    return Layer(_full(sorted(settings, key=lambda setting: setting[0].count("."))), words=True)


def from_mapping(settings: Mapping[Any, Any], source: str | None = None) -> Layer:
    """Make a layer of nested settings.

    Raises:
        UserError: If a key is unknown or a class cannot be imported.
    """
    return Layer(_full(_flat(settings)), source)


def read_yaml(path: Path) -> Mapping[Any, Any]:
    """Read a file of settings.

    Raises:
        UserError: If it is not a readable YAML file of settings.
    """
    try:
        text = path.read_text(encoding="utf-8")
        # The comment keeps jsonargparse from taking a file of one empty key for a plain text.
        loaded = get_loader("yaml")(text + "\n#")
        _refuse_duplicates(yaml.compose(text, Loader=yaml.SafeLoader), set())
    except FileNotFoundError:
        raise UserError("there is no such file.") from None
    except OSError as error:
        raise UserError(f"the file cannot be read: {(error.strerror or str(error)).lower()}.") from error
    except UnicodeDecodeError:
        raise UserError("the file must be YAML text, and it is not text.") from None
    except yaml.YAMLError as error:
        mark, problem = (
            getattr(error, "problem_mark", None),
            getattr(error, "problem", None) or "it is malformed",
        )
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UserError(f"the file is not valid YAML: {where}{problem}.") from error
    if not isinstance(loaded, Mapping):
        kind = {type(None): "nothing", list: "a list"}.get(type(loaded), "one value")
        raise UserError(f"the file must be a mapping of settings, such as `rounds: 100`, got {kind}.")
    return loaded


def _refuse_duplicates(node: yaml.Node | None, visited: set[int]) -> None:
    """Refuse a key that a mapping has twice, of which YAML's loader would silently take the last.

    Args:
        node: Where to look.
        visited: Nodes that were looked at, by identity: an alias may lead back to what it is part of.

    Raises:
        UserError: If there is one.
    """
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise UserError(
                    f"line {key.start_mark.line + 1}: {key.value} is set a second time; keep one."
                )
            seen.add(str(key.value))
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        for part in child if isinstance(child, tuple) else (child,):
            _refuse_duplicates(part, visited)


def _flat(settings: Mapping[Any, Any], prefix: str = "") -> Iterator[Setting]:
    """List settings by dotted key; what is not a group of settings stays whole."""
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if key in groups() and isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        elif key in keys():
            refuse_null(key, value)
            yield key, value
        else:
            raise UserError(unknown_key(key))


def _nested(settings: Sequence[Setting]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in settings:
        *above, last = key.split(".")
        branch = tree
        for name in above:
            branch = branch.setdefault(name, {})
        branch[last] = value
    return tree


def _full(
    settings: Iterable[Setting],
) -> tuple[Setting, ...]:
    """Write classes by their import path: flsel's own where another package has the name too."""
    return tuple((key, _full_path(key, value)) for key, value in settings)


def _full_path(key: str, value: Any) -> Any:
    asked = _asked(key)
    path = _class_path(value)
    if asked is None or path is None or path == "null":
        return value
    if "." in path:
        if inspect.isroutine(resolve(key, asked, path)):
            return _function(key, path, value)
    elif path in asked.classes():
        made = asked.classes()[path]
        path = f"{made.__module__}.{made.__qualname__}"
    if path == _class_path(value):
        return value
    spec = _loaded(value)
    if not isinstance(spec, Mapping):
        return path
    full = {**spec, "class_path": path}
    return json.dumps(full) if isinstance(value, str) else full


def _function(key: str, path: str, value: Any) -> str:
    spec = _loaded(value)
    if isinstance(spec, Mapping) and spec.get("init_args"):
        raise UserError(no_arguments(key, path))
    return path


def _without_replaced(base: Namespace, settings: Sequence[Setting]) -> Namespace:
    """Drop the arguments of classes that the settings replace; jsonargparse keeps those of equal names."""
    base = base.clone()
    for key, value in settings:
        asked, path, spec = _asked(key), _class_path(value), _spec(base, key)
        if asked and path and spec and asked.find(path) is not asked.find(spec["class_path"]):
            base[key.removesuffix(".class_path")] = None
    return base


def _asked(key: str) -> Plugin | None:
    return plugins().get(key.removesuffix(".class_path"))


def _class_path(value: Any) -> str | None:
    spec = _loaded(value)
    path = spec.get("class_path") if isinstance(spec, Mapping) else spec
    return path if isinstance(path, str) else None


def _loaded(value: Any) -> Any:
    """Read a mapping or a list given as text on the command line; leave the rest."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return get_loader("yaml")(value)
        except yaml.YAMLError:
            return None
    return value


def _spec(base: Namespace, key: str) -> Mapping[str, Any]:
    """Return the ``{class_path, init_args}`` that the setting ``key`` has, or an empty mapping."""
    value = base.get(key) if key in plugins() else None
    return value.as_dict() if isinstance(value, Namespace) else value or {}


def _by_setting(
    settings: Sequence[Setting],
) -> dict[str, list[Setting]]:
    """Group settings, so that a class and its arguments are together."""
    found: dict[str, list[Setting]] = {}
    for key, value in settings:
        top = next(
            (name for name in plugins() if f"{key}.".startswith(f"{name}.")),
            key,
        )
        found.setdefault(top, []).append((key, value))
    return found


def _joined(top: str, given: Sequence[Setting], before: Mapping[str, Any]) -> Any:
    """Join a class and arguments that were given one by one: ``{class_path, init_args}``."""
    if top not in plugins():
        return _loaded(given[-1][1])
    spec: dict[str, Any] = {"class_path": before.get("class_path")}
    for key, value in given:
        name = key.removeprefix(top).removeprefix(".").removeprefix("init_args").removeprefix(".")
        if name not in ("", "class_path"):
            spec["init_args"] = {**spec.get("init_args", {}), name: value}
        else:
            whole = _loaded(value)
            spec |= whole if isinstance(whole, Mapping) else {"class_path": whole}
    return spec
