"""Parse settings: lay them over each other, then give texts and YAML the types that are declared."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from argparse import ArgumentError
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from flsel.arguments import Argument, arguments, check
from flsel.config.layers import Layers, Word, located
from flsel.config.run import RunConfig
from flsel.config.schema import Plugin, closest, items, mismatch, plugins
from flsel.config.shipped import PAPERS, RUNS, find
from flsel.config.spec import Spec
from flsel.config.usage import class_help, print_config, run_parser
from flsel.config.yaml_file import loaded, read_yaml
from flsel.errors import UserError, short

# What a run tells a model that asks for it.
FILLED = ("num_classes", "input_shape")


def parse(given: Sequence[Word], command: str = "train") -> RunConfig:
    """Parse the words of a command line, with the YAML files that they name.

    Args:
        given: What :func:`words` returned, without a command's own options.
        command: ``train`` or ``data``, for the help text.

    Raises:
        UserError: If a key is unknown, a value has the wrong type or range, or a file is unreadable.
        SystemExit: If they ask for help or for the config, after printing it.
    """
    _help(given, command)
    layers, typed = Layers(), list[Word]()
    for key, value in given:
        if key == "config":
            _lay_words(layers, typed)
            _lay_file(layers, value)
            typed = []
        elif key != "print_config":
            typed.append((key, value))
    _lay_words(layers, typed)
    config = _to_config(layers)
    if "print_config" in dict(given):
        print_config(config, dict(given)["print_config"] or "comments")
    return config


def parse_file(path: Path) -> RunConfig:
    """Parse a YAML file of settings.

    Raises:
        UserError: As :func:`parse`.
    """
    return parse([("config", str(path))])


def parse_settings(settings: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> RunConfig:
    """Parse settings given as nested plain values, as in the YAML file.

    Args:
        settings: The settings.
        changes: Plain values by dotted key that replace some, as words of the command line would.

    Raises:
        UserError: As :func:`parse`.
    """
    layers = Layers()
    layers.lay(settings)
    for key, value in _classes_first((changes or {}).items()):
        layers.lay({key: value})
    return _to_config(layers)


def to_types(key: str, made: Callable[..., Any], given: Mapping[str, Any], skip: int = 0) -> dict[str, Any]:
    """Give the arguments of a class or a function the types that it declares, and add its defaults.

    Args:
        key: The setting that it is, for messages; may be empty.
        made: The class or function.
        given: Its arguments; texts of the command line among them.
        skip: Leading arguments that the settings do not give.

    Raises:
        UserError: If an argument is unknown, missing, or not what is declared.
    """
    left_out = {name for name in FILLED if key == "model" and _required(made, name) and name not in given}
    try:
        parser = class_parser(made, skip, frozenset(left_out))
        found: dict[str, Any] = parser.parse_object(dict(given)).as_dict()
    except (ArgumentError, ValueError, RecursionError) as error:
        raise _explained(short(error), key, made, given, skip) from error
    check(made, found, f"{key}." if key else "")
    return found


@functools.cache
def class_parser(made: Callable[..., Any], skip: int, left_out: frozenset[str]) -> ArgumentParser:
    """Return a parser of what a class or a function takes."""
    parser = ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if inspect.isclass(made) else parser.add_function_arguments
    add(made, skip={*left_out, *([skip] if skip else [])}, fail_untyped=False)
    return parser


def _help(given: Sequence[Word], command: str) -> None:
    for key, value in given:
        top = key.removesuffix(".help")
        if key == "help" or (key != top and top in plugins()):
            print(run_parser(command).format_help() if key == "help" else class_help(top, value))
            sys.exit(0)


def _lay_words(layers: Layers, given: Sequence[Word]) -> None:
    for key, text in _classes_first(given):
        if text is None:
            raise UserError(f"{key} needs a value: --{key} VALUE.")
        layers.lay({key: text})


def _lay_file(layers: Layers, name: str | None) -> None:
    if name is None:
        raise UserError("--config needs a file: --config FILE.")
    with located(name):
        settings = read_yaml(find(name, RUNS, PAPERS))
    layers.lay(settings, name)


def _classes_first(given: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Sort a class before its arguments, in whichever order they were typed."""
    return sorted(given, key=lambda setting: setting[0].count("."))


def _to_config(layers: Layers) -> RunConfig:
    try:
        config: RunConfig = _made(RunConfig, layers.values, "")
        return config
    except UserError as error:
        with located(layers.source(str(error))):
            raise


def _made(made: Any, values: Mapping[str, Any], prefix: str) -> Any:
    """Make the settings, or a group of them."""
    return made(
        **{
            name: _made(argument.hint, values, f"{prefix}{name}.")
            if is_dataclass(argument.hint)
            else _value(f"{prefix}{name}", argument, values[f"{prefix}{name}"])
            for name, argument in arguments(made).items()
        }
    )


def _value(key: str, argument: Argument, value: Any) -> Any:
    """Give a setting its type, and build the classes that only store arguments."""
    asked, each = plugins().get(key), items(argument.hint)
    if asked is not None:
        spec = None if value is None else _spec(key, asked, value)
        return spec if spec is None or asked.factory else spec.build()
    if each is not None:
        listed = loaded(value)
        if not isinstance(listed, list | tuple):
            raise mismatch(key, argument, value)
        return tuple(_spec(f"{key}[{n}]", each, item) for n, item in enumerate(listed))
    try:
        nested = functools.reduce(lambda inner, name: {name: inner}, reversed(key.split(".")), value)
        return run_parser("train").parse_object(nested, defaults=False)[key]
    except (ArgumentError, ValueError, RecursionError) as error:
        raise mismatch(key, argument, loaded(value)) from error


def _spec(key: str, asked: Plugin, value: Any) -> Spec:
    spec = value if isinstance(value, Mapping) else {"class_path": value}
    made, given = asked.find(key, spec.get("class_path")), spec.get("init_args", {})
    found = to_types(key, made, given, asked.given)
    # What a function has as defaults stays with it: its path alone says as much.
    kept = found if inspect.isclass(made) else {name: found[name] for name in given}
    return Spec(f"{made.__module__}.{made.__qualname__}", kept, key)


def _required(made: Callable[..., Any], name: str) -> bool:
    argument = arguments(made).get(name)
    return argument is not None and argument.default is MISSING


def _explained(
    message: str, key: str, made: Callable[..., Any], given: Mapping[str, Any], skip: int
) -> UserError:
    """Say what jsonargparse refused, with the setting's key and the declared rule."""
    known, prefix = dict(list(arguments(made).items())[skip:]), f"{key}." if key else ""
    name = getattr(made, "__name__", str(made))
    unknown = re.search(r"(?:Option|Key) '([^']+)' is not", message)
    missing = re.search(r"arguments are required: ([\w.]+)", message)
    wrong = re.search(r'key "(\w+)', message)
    if unknown:
        close = closest(unknown[1], known)
        takes = f"takes {', '.join(known)}" if known else "takes no arguments"
        advice = f"; did you mean {close}?" if close else "."
        return UserError(f"{prefix}{unknown[1]} is not an argument of {name}, which {takes}{advice}")
    if missing:
        return UserError(f"{prefix}{missing[1]} must be set: {name} has no default for it.")
    if wrong and wrong[1] in known:
        return mismatch(f"{prefix}{wrong[1]}", known[wrong[1]], loaded(given[wrong[1]]))
    return UserError(f"{key} {name} cannot be built from its settings: {message.rstrip('.')}.")
