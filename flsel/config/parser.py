"""Parse settings: lay them over each other, then give texts and YAML the types that are declared."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from flsel.arguments import Argument, arguments, check
from flsel.config.layers import Layers, Word, located
from flsel.config.run import RunConfig
from flsel.config.schema import Plugin, items, mismatch, plugins, typed
from flsel.config.spec import Spec
from flsel.config.usage import class_help, print_config, run_parser
from flsel.config.yaml_file import loaded, read_yaml
from flsel.errors import UserError, meant
from flsel.files.shipped import PAPERS, RUNS, find

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
    for key, value in given:
        top = key.removesuffix(".help")
        if key == "help" or (key != top and top in plugins()):
            print(run_parser(command).format_help() if key == "help" else class_help(top, value))
            sys.exit(0)
    layers = Layers()
    settings = [word for word in given if word[0] != "print_config"]
    for is_file, stretch in groupby(settings, key=lambda word: word[0] == "config"):
        for key, value in stretch if is_file else _classes_first(stretch):
            if value is None:
                what = "file" if is_file else "value"
                raise UserError(f"{key} needs a {what}: --{key} {what.upper()}.")
            if is_file:
                with located(value):
                    read = read_yaml(find(value, RUNS, PAPERS))
                layers.lay(read, value)
            else:
                layers.lay({key: value})
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
    known = dict([*arguments(made).items()][skip:])
    prefix, name = f"{key}." if key else "", getattr(made, "__name__", str(made))
    found = dict[str, Any]()
    for argument in known.values():
        if argument.name in given:
            found[argument.name] = typed(f"{prefix}{argument.name}", argument, given[argument.name])
        elif argument.default is not MISSING:
            found[argument.name] = argument.default
        elif key != "model" or argument.name not in FILLED:
            raise UserError(f"{prefix}{argument.name} must be set: {name} has no default for it.")
    for other in given.keys() - known.keys():
        if not _takes_any(made):
            takes = f"takes {', '.join(known) or 'no arguments'}{meant(other, known)}"
            raise UserError(f"{prefix}{other} is not an argument of {name}, which {takes}")
        found[other] = typed(f"{prefix}{other}", Argument(other, Any, MISSING), given[other])
    check(made, found, prefix)
    return found


def _takes_any(made: Callable[..., Any]) -> bool:
    kinds = [parameter.kind for parameter in inspect.signature(made).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


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
    """Make the settings, or a group of them; what is not given is the default."""
    given = dict[str, Any]()
    for name, argument in arguments(made).items():
        key = f"{prefix}{name}"
        if is_dataclass(argument.hint):
            given[name] = _made(argument.hint, values, f"{key}.")
        elif key in values:
            given[name] = _value(key, argument, values[key])
    return made(**given)


def _value(key: str, argument: Argument, value: Any) -> Any:
    """Give a setting its type, and build the classes that only store arguments."""
    asked, each = plugins().get(key), items(argument.hint)
    if asked is not None:
        spec = None if value is None else _spec(key, asked, value)
        return spec if spec is None or asked.factory else spec.build()
    if each is None:
        return typed(key, argument, value)
    listed = loaded(value)
    if not isinstance(listed, list | tuple):
        raise mismatch(key, argument, value)
    return tuple(_spec(f"{key}[{n}]", each, item) for n, item in enumerate(listed))


def _spec(key: str, asked: Plugin, value: Any) -> Spec:
    spec = value if isinstance(value, Mapping) else {"class_path": value}
    made, given = asked.find(key, spec.get("class_path")), spec.get("init_args", {})
    found = to_types(key, made, given, asked.given)
    # What a function has as defaults stays with it: its path alone says as much.
    kept = found if inspect.isclass(made) else {name: found[name] for name in given}
    return Spec(f"{made.__module__}.{made.__qualname__}", kept, key)
