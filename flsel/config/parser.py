"""Parse settings in layers: defaults, then YAML files and the command line in the order given."""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from flsel.config.describe import describe
from flsel.config.layers import Layer, from_mapping, from_words, read_yaml
from flsel.config.run import RunConfig
from flsel.config.schema import keys, plugins
from flsel.config.shipped import PAPERS, RUNS, find
from flsel.config.usage import DESCRIPTION, USAGE, HelpFormatter, class_help
from flsel.errors import UserError

Word = tuple[str, str | None]


def run_parser(command: str) -> ArgumentParser:
    """Return the parser of a run's settings; their schema is :class:`RunConfig`.

    Args:
        command: ``train`` or ``data``, for the help text.
    """
    parser = ArgumentParser(
        prog=f"flsel {command}",
        usage=USAGE[command],
        description=DESCRIPTION,
        formatter_class=HelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="config", help="YAML file, or a name that `flsel configs` lists.")
    parser.add_class_arguments(RunConfig)
    # Plug-ins are given as plain values, so that --print_config can print them and a YAML can replace them.
    described = describe(RunConfig())
    parser.set_defaults({key: described[key] for key in plugins() if key in described})
    return parser


def parse(parser: ArgumentParser, given: Sequence[Word]) -> RunConfig:
    """Parse the words of a command line, with the YAML files that they name.

    Args:
        parser: What :func:`run_parser` returned.
        given: What :func:`words` returned, without a command's own options.

    Raises:
        UserError: If a key is unknown, a value has the wrong type or range, or a file is unreadable.
        SystemExit: If they ask for help or for the config, after printing it.
    """
    return _parse_layers(parser, _layers(given))


def parse_file(path: Path) -> RunConfig:
    """Parse a YAML file of settings.

    Raises:
        UserError: As :func:`parse`.
    """
    return _parse_layers(run_parser("train"), [_file(str(path))])


def parse_settings(settings: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> RunConfig:
    """Parse settings given as nested plain values, as in the YAML file.

    Args:
        settings: The settings.
        changes: Plain values by dotted key that replace some, as words of the command line would.

    Raises:
        UserError: As :func:`parse`.
    """
    typed = [(key, _text(value)) for key, value in (changes or {}).items()]
    return _parse_layers(run_parser("train"), [from_mapping(settings), from_words(typed)])


def words(arguments: Sequence[str]) -> list[Word]:
    """Split command-line arguments into dotted keys and their texts.

    Args:
        arguments: ``--key value``, ``--key=value``, or ``--key`` alone: true where that fits, else None.

    Raises:
        UserError: If something is neither a key nor its value.
    """
    left, found = list(arguments), list[Word]()
    while left:
        word = left.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if word == "-h":
            found.append(("help", None))
        elif not word.startswith("--"):
            hint = f"; a file of settings as --config {word}" if word.endswith((".yaml", ".yml")) else ""
            raise UserError(f"{word!r} is not expected here: a setting is given as --key value{hint}.")
        elif equals:
            found.append((key, value))
        elif left and not left[0].startswith("--"):
            found.append((key, left.pop(0)))
        else:
            found.append((key, "true" if keys().get(key) is bool else None))
    return found


def _text(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _layers(given: Sequence[Word]) -> list[Layer]:
    for key, value in given:
        if key == "help":
            return [Layer((("help", None),), words=True)]
        if key.endswith(".help") and key.removesuffix(".help") in plugins():
            print(class_help(key.removesuffix(".help"), value))
            sys.exit(0)
    layers, typed, last = list[Layer](), list[tuple[str, Any]](), list[tuple[str, Any]]()
    for key, value in given:
        if key == "config":
            layers += [from_words(typed), _file(value)]
            typed = []
        elif key == "print_config":
            last = [(key, value or "comments")]
        else:
            typed.append((key, value))
    return [*layers, from_words(typed), Layer(tuple(last), words=True)]


def _file(path: str | None) -> Layer:
    if path is None:
        raise UserError("--config needs a file: --config FILE.")
    with _located(path):
        return from_mapping(read_yaml(find(path, RUNS, PAPERS)), path)


def _parse_layers(parser: ArgumentParser, layers: Sequence[Layer]) -> RunConfig:
    parsed = parser.get_defaults()
    for layer in layers:
        if not layer.settings:
            continue
        try:
            parsed = layer.apply(parser, parsed)
        except ArgumentError as error:
            with _located(layer.source):
                raise UserError(layer.blame(parser, parsed, error)) from error
    try:
        return _to_config(parser, parsed)
    except UserError as error:
        with _located(_source(str(error), layers)):
            raise


def _to_config(parser: ArgumentParser, parsed: Namespace) -> RunConfig:
    named = [(_Named(key), asked.base, True) for key, asked in plugins().items() if not asked.factory]
    built = parser.instantiate(parsed, instantiators=named)
    values = {field.name: built[field.name] for field in fields(RunConfig)}
    for key in (key for key, asked in plugins().items() if asked.factory):
        group, _, name = key.rpartition(".")
        if group:
            values[group] = replace(values[group], **{name: _named(key, getattr(values[group], name))})
        else:
            values[key] = _named(key, values[key])
    values["callbacks"] = tuple(_named(f"callbacks[{n}]", made) for n, made in enumerate(values["callbacks"]))
    return RunConfig(**values)


@dataclass(frozen=True)
class _Named:
    """Build a class of the settings; what it refuses is said with the setting's dotted key."""

    key: str

    def __call__(self, made: Callable[..., Any], *given: Any, **arguments: Any) -> Any:
        try:
            return made(*given, **arguments)
        except UserError as error:
            named = str(error).split(" ", 1)[0] in arguments
            raise UserError(f"{self.key}.{error}" if named else str(error)) from error
        except Exception as error:  # the constructor may be the user's own
            name, reason = getattr(made, "__name__", made), " ".join(str(error).split()).rstrip(".")
            if not isinstance(error, ValueError):
                at = traceback.extract_tb(error.__traceback__)[-1]
                reason = f"{type(error).__name__}: {reason} ({Path(at.filename).name}, line {at.lineno})"
            raise UserError(f"{self.key} {name} cannot be built: {reason}.") from error


def _named(key: str, factory: Any) -> Any:
    """Name the setting behind a factory, for when it is called."""
    if isinstance(factory, partial):  # jsonargparse's: what it builds is the last argument
        return partial(_Named(key), factory.args[-1], **factory.keywords)
    return partial(_Named(key), factory) if inspect.isclass(factory) else factory


@contextmanager
def _located(source: str | None) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise (error if source is None else UserError(f"{source}: {error}")) from error.__cause__


def _source(message: str, layers: Sequence[Layer]) -> str | None:
    """Return the file that last set the key with which a message begins."""
    key = message.split(" ", 1)[0]
    for layer in reversed(layers):
        if any(f"{key}.".startswith(f"{name}.") for name, _ in layer.settings):
            return layer.source
    return None
