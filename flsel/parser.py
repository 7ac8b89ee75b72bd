"""Parse settings: defaults, then YAML files, then the command line, with one-sentence errors."""

from __future__ import annotations

import difflib
import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from flsel.config import RunConfig
from flsel.describe import describe
from flsel.errors import UserError

# Imported so that their classes can be named without a module path.
from flsel.selectors import afl, complete, md, powd, uniform  # noqa: F401


def run_parser(command: str) -> ArgumentParser:
    """Return the parser of a run's settings; their schema is :class:`RunConfig`.

    Args:
        command: Name of the command, for the help text.
    """
    parser = ArgumentParser(prog=f"flsel {command}", exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML file of settings; later ones win")
    parser.add_class_arguments(RunConfig)
    # Plug-ins are given as plain values, so that --print_config can print them and a YAML can replace them.
    parser.set_defaults({key: value for key, value in describe(RunConfig()).items() if _is_plugin(value)})
    return parser


def parse(parser: ArgumentParser, arguments: Sequence[str]) -> RunConfig:
    """Parse command-line arguments.

    Raises:
        UserError: If a key is unknown, a value has the wrong type or range, or a file is unreadable.
    """
    try:
        return to_config(parser, parser.parse_args(list(arguments)))
    except ArgumentError as error:
        raise UserError(explain(str(error), parser)) from error


def parse_file(path: Path) -> RunConfig:
    """Parse a YAML file of settings."""
    if not path.is_file():
        raise UserError(f"there is no config file {path}.")
    return parse(run_parser("train"), ["--config", str(path)])


def parse_settings(settings: Mapping[str, Any]) -> RunConfig:
    """Parse settings given as nested plain values, as in the YAML file."""
    parser = run_parser("train")
    try:
        return to_config(parser, parser.parse_object(dict(settings)))
    except ArgumentError as error:
        raise UserError(explain(str(error), parser)) from error


def to_config(parser: ArgumentParser, parsed: Namespace) -> RunConfig:
    """Build the settings of a run from what a parser of :func:`run_parser` parsed."""
    built = parser.instantiate(parsed)
    return RunConfig(**{field.name: built[field.name] for field in fields(RunConfig)})


def explain(message: str, parser: ArgumentParser) -> str:
    """Make one sentence of jsonargparse's message, with the key that was probably meant."""
    lines = [line.strip().rstrip(":") for line in message.splitlines() if line.strip()]
    sentence = ": ".join(lines).replace("Parser key ", "").rstrip(".")
    unknown = re.search(
        r"unrecognized arguments: --([\w.]+)|[Kk]ey ['\"]([\w.]+)['\"] is not expected|"
        r"Option '([\w.]+)' is not accepted",
        message,
    )
    if unknown:
        name = next(group for group in unknown.groups() if group)
        known = [key for key in parser.get_defaults().keys() if key != "config"]  # noqa: SIM118 (a Namespace)
        close = difflib.get_close_matches(name, known, n=1)
        if close:
            sentence += f"; did you mean {close[0]}?"
    return sentence if sentence.endswith("?") else f"{sentence}."


def _is_plugin(value: Any) -> bool:
    return isinstance(value, dict) and "class_path" in value
