"""The text of ``flsel COMMAND --help`` and of the comments that ``--print_config`` prints."""

from __future__ import annotations

import functools
import inspect
import textwrap
from argparse import SUPPRESS, Action, ArgumentError
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from flsel.arguments import Argument, arguments, shown
from flsel.config.plugin import rule
from flsel.config.run_config import RunConfig
from flsel.config.run_settings import RunSettings
from flsel.config.schema import defaults, explained, groups, keys_of, plugins
from flsel.errors import UserError, short

DESCRIPTION = """\
Every setting is a key of the YAML file (--config FILE) and an option (--local.batch_size 32). Later
settings override earlier ones. --quiet means --quiet true. For a setting that takes a class, --selector PowD
chooses the class, --selector.d 20 sets an argument, --selector.help lists the classes, and --selector.help
PowD explains one. A class that replaces another starts from its own defaults. Name your own class by its
import path, --model mymodels.Net. It may be in the current folder or in an installed package. --print_config
prints all settings as a YAML file to start from.
"""
USAGE = {
    "train": "flsel train [--config FILE] [--key value ...] [--address RAY_CLUSTER]\n"
    "       flsel train --resume RUN [--address RAY_CLUSTER]",
    "data": "flsel data [--config FILE] [--key value ...] [--picture partition.png]",
}
_WIDTH = 96


@functools.cache
def run_parser(command: str) -> ArgumentParser:
    """Return the parser of a run's settings; their schema is :class:`RunSettings`.

    Args:
        command: ``train`` or ``data``, for the help text.
    """
    parser = own_parser(command, RunSettings, USAGE[command], DESCRIPTION)
    parser.add_argument("--config", action="config", help="YAML file, or a name that `flsel configs` lists.")
    # Classes are given as plain values, so that --print_config can print them.
    parser.set_defaults(dict(defaults()))
    return parser


def own_parser(command: str, schema: type, usage: str, description: str) -> ArgumentParser:
    """Return the parser of a command's own settings, for its help.

    Args:
        command: The command's name.
        schema: The dataclass of the settings.
        usage: Its first lines.
        description: What follows them.
    """
    parser = ArgumentParser(
        prog=f"flsel {command}",
        usage=usage,
        description=description,
        formatter_class=help_formatter(keys_of(schema)),
        exit_on_error=False,
        allow_abbrev=False,
    )
    bases = [base for base in schema.__mro__[:0:-1] if is_dataclass(base)]
    parser.add_class_arguments(schema, skip={each.name for base in bases for each in fields(base)})
    for base in bases:
        parser.add_class_arguments(base)
    return parser


def print_config(config: RunConfig, flags: str) -> None:
    """Print a run's settings as a YAML file and end the process.

    Raises:
        UserError: If there is no such flag.
    """
    try:
        parser = run_parser("train")
        settings = parser.parse_object(config.to_dict())
        parser.parse_args([f"--print_config={flags}"], namespace=settings)
    except ArgumentError as error:
        raise UserError(short(error)) from error


def help_formatter(known: Mapping[str, Argument], prefix: str = "") -> type[DefaultHelpFormatter]:
    """Return a formatter that shows each argument with the values it takes, in words, and its default."""

    class HelpFormatter(DefaultHelpFormatter):
        def __init__(self, prog: str, **options: Any) -> None:
            # As wide in every terminal as in the text that comes with the package.
            super().__init__(prog, **(options | {"width": _WIDTH}))  # type: ignore[no-untyped-call]

        def _get_help_string(self, action: Action) -> str:
            text = (action.help or "").replace("``", "").strip()
            argument = known.get(action.dest.removeprefix(prefix))
            if argument is None or action.default == SUPPRESS:
                return text
            needed = "required" if action.required else f"default: {_shown(action.default)}"
            told = f"({rule(argument)}; {needed})"
            if told in " ".join(text.split()):  # jsonargparse asks twice for what has no text of its own
                return text
            return textwrap.fill(f"{text} {told}".strip(), _WIDTH)

        def _format_action(self, action: Action) -> str:
            # Whole groups as one value, and one line of help on help per class, would bury the settings.
            hidden = action.dest in groups() or action.dest.endswith(".help") or action.dest == prefix[:-1]
            return "" if hidden else super()._format_action(action)

    return HelpFormatter


def class_help(key: str, name: str | None) -> str:
    """Return the help of a class that a setting takes, or a list of such classes.

    Args:
        key: Dotted key of the setting, such as ``selector``.
        name: Name or import path of the class; None lists the classes.

    Raises:
        UserError: If there is no such class.
    """
    asked = explained()[key]
    if name is None:
        known = [(known, inspect.getdoc(made) or "") for known, made in asked.classes().items()]
        for name, (each, *_) in asked.published().items():
            known.append((name, f"of the installed package {each.dist.name if each.dist else each.module}"))
        listed = "\n".join(f"  {known:24} {doc.partition(chr(10))[0]}" for known, doc in known)
        several = "one of" if key in plugins() else "a list of"
        return f"{key}: {several} these, or the import path of another {asked.base.__name__}\n\n{listed}"
    made = asked.find(key, name)
    formatter = help_formatter(arguments(made), f"{key}.")
    parser = ArgumentParser(usage=SUPPRESS, formatter_class=formatter, add_help=False)
    add = parser.add_class_arguments if inspect.isclass(made) else parser.add_function_arguments
    add(made, key, skip={asked.given} if asked.given else set(), fail_untyped=False)
    summary = (inspect.getdoc(made) or "(no description)").partition("\n")[0]
    listed = parser.format_help().strip() or f"{summary}\n\nIt takes no arguments."
    return f"{made.__module__}.{made.__qualname__}\n\n{listed}"


def _shown(default: Any) -> str:
    if isinstance(default, dict | Namespace) and "class_path" in default:
        return str(default["class_path"]).rpartition(".")[2]
    return shown(default).strip("'")
