"""The words of a command line: settings by key, with the YAML files that they name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby

from flsel.arguments import shown
from flsel.commands.help import class_help, print_config, run_parser
from flsel.config import RunConfig
from flsel.config.layers import SHORT, Layers
from flsel.config.schema import explained, keys
from flsel.errors import UserError

Word = tuple[str, str | None]


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
        elif word == "--" or not word.startswith("--"):
            hint = f"; a file of settings as --config {word}" if word.endswith((".yaml", ".yml")) else ""
            raise UserError(f"{shown(word)} is not expected here: a setting is given as --key value{hint}.")
        elif equals:
            found.append((key, value))
        elif left and not left[0].startswith("--"):
            found.append((key, left.pop(0)))
        else:
            found.append((key, "true" if key in keys() and keys()[key].hint is bool else None))
    return found


def parse(given: Sequence[Word], command: str = "train") -> RunConfig:
    """Parse the settings of a run.

    Args:
        given: What :func:`words` returned, without a command's own options.
        command: ``train`` or ``data``, for the help text.

    Raises:
        UserError: If a key is unknown, a value has the wrong type or range, or a file is unreadable.
        SystemExit: If they ask for help or for the config, after printing it.
    """
    for key, value in given:
        top = key.removesuffix(".help")
        if key == "help" or (key != top and top in explained()):
            print(run_parser(command).format_help() if key == "help" else class_help(top, value))
            sys.exit(0)
    layers = Layers()
    settings = [(SHORT.get(key, key), _given(key, value)) for key, value in given if key != "print_config"]
    for is_file, stretch in groupby(settings, key=lambda word: word[0] == "config"):
        if is_file:
            for _, name in stretch:
                layers.lay_file(name)
        else:
            layers.lay_each(stretch)
    config = RunConfig.from_layers(layers)
    if "print_config" in dict(given):
        print_config(config, dict(given)["print_config"] or "comments")
    return config


def _given(key: str, value: str | None) -> str:
    if value is None and key.endswith(".help"):
        raise UserError(f"--{key}: {key.removesuffix('.help')} takes no class; --help lists all settings.")
    if value is None or (key == "config" and not value):
        what = "file" if key == "config" else "value"
        raise UserError(f"{key} needs a {what}: --{key} {what.upper()}.")
    return value
