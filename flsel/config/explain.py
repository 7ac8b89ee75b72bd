"""Say in one sentence what is wrong with a setting: where it is, what is wrong, what would be right."""

from __future__ import annotations

import difflib
import inspect
import re
from argparse import ArgumentError
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

from flsel.config.schema import Plugin, allows_null, groups, items, keys, one_of, plugin, rule
from flsel.errors import UserError, imported


def explain(error: ArgumentError, key: str, value: Any) -> str:
    """Explain why a setting was refused.

    Args:
        error: What the parser said.
        key: Dotted key of the setting.
        value: What was given; where a class is asked for, its name or ``{class_path, init_args}``.
    """
    hint = keys().get(key)
    if hint is None:
        return tidy(error) if key == "print_config" else unknown_key(key)
    asked, each = plugin(hint), items(hint)
    if asked is not None:
        return _explain_class(error, key, value, asked) or tidy(error)
    if each is not None and isinstance(value, list | tuple):
        return _explain_items(error, key, value, each)
    return mismatch(key, hint, value)


def unknown_key(key: str) -> str:
    """Say that there is no such setting, and which one was probably meant."""
    if key in groups():
        inside = [name for name in keys() if name.startswith(f"{key}.")]
        return f"{key} is a group of settings: set {inside[0]}, {inside[1]} and so on."
    group, _, last = key.rpartition(".")
    inside = [name.removeprefix(f"{group}.") for name in keys() if name.startswith(f"{group}.")]
    elsewhere = [name for name in keys() if name.rpartition(".")[2] == last]
    close = _close(last, inside or keys())
    if not close and len(elsewhere) == 1:
        return f"there is no setting {key}; did you mean {elsewhere[0]}?"
    if close:
        return f"there is no setting {key}; did you mean {f'{group}.{close}' if inside else close}?"
    known = f"{group} has {', '.join(inside)}" if inside else "--help lists them"
    return f"there is no setting {key}; {known}."


def refuse_null(key: str, value: Any) -> None:
    """Refuse null where a setting, or an argument of its class, does not take it.

    Raises:
        UserError: If it does not.
    """
    if value is None and not allows_null(keys()[key]):
        raise UserError(mismatch(key, keys()[key], value))
    asked = plugin(keys()[key])
    if asked is None or not isinstance(value, Mapping) or not isinstance(value.get("init_args"), Mapping):
        return
    made = asked.find(str(value.get("class_path")))
    hints = {} if made is None else _hints(made)
    for name, argument in value["init_args"].items():
        if argument is None and name in hints and not allows_null(hints[name]):
            raise UserError(mismatch(f"{key}.{name}", hints[name], argument))


def mismatch(key: str, hint: Any, value: Any) -> str:
    """Say that a value has the wrong type."""
    allowed = rule(hint)
    close = _close(value, allowed.removeprefix("one of ").split(", ")) if "one of " in allowed else None
    advice = f"; did you mean {close}?" if close else "."
    if allowed.startswith("a whole number") and (whole := _whole(value)) is not None:
        advice = f"; write {whole}."
    if allowed.startswith("text") and isinstance(value, bool | int | float):
        advice = f"; write '{value}' in quotes."
    return f"{key} must be {allowed}, got {_shown(value)}{advice}"


def not_a_class(key: str, asked: Plugin, name: Any) -> str:
    """Say that a setting takes a class, and that there is none of that name."""
    close = _close(name, asked.classes())
    if close:
        return f"{key} has no class {name}; did you mean {close}? (--{key}.help lists them)"
    return f"{key} must be {one_of(asked)}, got {_shown(name)}."


def no_arguments(key: str, path: str) -> str:
    """Say that a function takes no arguments from the settings."""
    return f"{key} {path} is a function, whose arguments cannot be set here; make it a class."


def resolve(key: str, asked: Plugin, path: str) -> Any:
    """Import the class or function that a dotted path names.

    Raises:
        UserError: If there is none, or it does not fit.
    """
    made = imported(key, path)
    if asked.factory and inspect.isroutine(made):
        return made
    if not (inspect.isclass(made) and issubclass(made, asked.base)):
        raise UserError(f"{key} must be derived from {asked.base.__name__}, and {path} is not.")
    if inspect.isabstract(made):
        lacks = ", ".join(sorted(getattr(made, "__abstractmethods__", ())))
        raise UserError(f"{key} cannot be {path}, which does not define {lacks}.")
    return made


def tidy(error: ArgumentError) -> str:
    """Put the parser's message on one line."""
    lines = [line.strip().rstrip(":") for line in str(error).splitlines() if line.strip()]
    return ": ".join(lines).replace("Parser key ", "").rstrip(".") + "."


def _explain_class(error: ArgumentError, key: str, value: Any, asked: Plugin) -> str | None:
    """Explain a refused class or one of its arguments; None if nothing is to be seen."""
    spec = value if isinstance(value, Mapping) else {"class_path": value}
    path = spec.get("class_path")
    made = asked.find(path) if isinstance(path, str) else None
    if made is None:
        return not_a_class(key, asked, path)
    misplaced = sorted(spec.keys() - {"class_path", "init_args", "dict_kwargs"})
    if misplaced:
        return _explain_misplaced(key, misplaced[0], spec, asked)
    given = spec.get("init_args", {})
    if inspect.isroutine(made) and given:
        return no_arguments(key, str(path))
    if not isinstance(given, Mapping):
        return f"{key}.init_args must be a mapping of arguments of {made.__name__}, got {_shown(given)}."
    return _explain_arguments(error, key, asked, made, given)


def _explain_misplaced(key: str, name: str, spec: Mapping[str, Any], asked: Plugin) -> str:
    if name in asked.classes():
        return f"{key}.{name} must be written {key}: {{class_path: {name}, init_args: {{...}}}}."
    right = f"{{class_path: {asked.find(spec['class_path']).__name__}, init_args: {{{name}: {spec[name]}}}}}"
    return f"{key}.{name} must be under init_args: {key}: {right}."


def _explain_arguments(
    error: ArgumentError, key: str, asked: Plugin, made: Any, given: Mapping[str, Any]
) -> str | None:
    accepted = asked.arguments(made)
    if accepted is None:
        return None
    for name in given:
        if name.split(".")[0] not in accepted:
            takes = f"takes {', '.join(accepted)}" if accepted else "takes no arguments"
            close = _close(name, accepted)
            advice = f"; did you mean {close}?" if close else "."
            return f"{key}.{name} is not an argument of {made.__name__}, which {takes}{advice}"
    hints = _hints(made)
    for name in re.findall(r'"([\w.]+)":', str(error)):
        if name in given and name in hints:
            return mismatch(f"{key}.{name}", hints[name], given[name])
    missing = [n for n, p in accepted.items() if p.default is p.empty and n not in given]
    if missing:
        filled = missing[0] in ("num_classes", "input_shape") and key == "model"
        advice = ", and with the default None the run fills it in." if filled else "."
        return f"{key}.{missing[0]} must be set: {made.__name__} has no default for it{advice}"
    return None


def _hints(made: Any) -> dict[str, Any]:
    try:
        return get_type_hints(made.__init__ if inspect.isclass(made) else made)
    except (NameError, TypeError):  # a type that is imported for type checkers only
        return {}


def _explain_items(error: ArgumentError, key: str, value: Iterable[Any], each: Plugin) -> str:
    for position, item in enumerate(value):
        said = _explain_class(error, f"{key}[{position}]", item, each)
        if said:
            return said
    return tidy(error)


def _close(word: Any, known: Iterable[str]) -> str | None:
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(str(word).lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def _whole(value: Any) -> int | None:
    try:
        number = float("no number" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value in (None, "null") else repr(value)
