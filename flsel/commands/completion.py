"""``flsel completion``: print a script by which a shell completes commands, settings and their values."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from flsel.arguments import Argument, alternatives
from flsel.commands import comparing, place, race_command, tuning
from flsel.config.plugin import plugin
from flsel.config.schema import keys, keys_of
from flsel.errors import UserError
from flsel.files.shipped import PAPERS, RUNS, SEARCH, shipped

_SHELLS = ("bash", "zsh", "tcsh")
_USAGE = """\
usage: flsel completion bash > ~/.local/share/bash-completion/completions/flsel
       flsel completion zsh > FOLDER/_flsel      (FOLDER is in fpath)
       flsel completion tcsh > ~/.flsel.tcsh     (source it)

Print a script for completion. It knows the commands, their settings, and the values of settings that
take a class or a name.
"""
# The commands, with their options that are no settings; a command that has --config has those of a run, too.
_DECLARED = (tuning.OWN, comparing.OWN, race_command.OWN, place.OWN)
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "train": ("config", "print_config", "resume", "address"),
    **{own.command: ("config", *own.others) for own in _DECLARED},
    "atlas": (),
    "check": (),
    "completion": (),
    "configs": (),
    "schema": (),
    "dashboard": ("project", "entity", "group", "keys", "folder"),
    "data": ("config", "picture"),
    "deploy": ("config", "nodes", "app", "timeout", "wait", "own-data"),
}
_FILES = ("config", "resume", "sweep", "space", "variants", "app", "picture")


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(_USAGE, end="")
        return 0
    if len(arguments) > 1 or arguments[0] not in _SHELLS:
        raise UserError(f"flsel completion takes one of {', '.join(_SHELLS)}, got {' '.join(arguments)}.")
    import shtab

    print(shtab.complete(_parser(shtab.FILE), arguments[0]))
    return 0


def _parser(files: Any) -> argparse.ArgumentParser:
    """Return a parser of all commands; ``files`` marks what is completed with names of files."""
    own = {each.command: keys_of(each.schema) for each in _DECLARED}
    parser = argparse.ArgumentParser(prog="flsel")
    commands = parser.add_subparsers()
    for name, options in _OPTIONS.items():
        command = commands.add_parser(name, help=name)  # shtab leaves out what has no help
        settings = own.get(name, {}) | dict(keys() if "config" in options else {})
        for key in dict.fromkeys((*options, *settings)):
            choices = _choices(settings[key]) if key in settings else None
            action = command.add_argument(f"--{key}", choices=choices)
            if key in _FILES:
                action.complete = files  # type: ignore[attr-defined]
    names = [file.name for kind in (RUNS, PAPERS, SEARCH) for file in shipped(kind)]
    commands.choices["configs"].add_argument("name", nargs="?", choices=names)
    commands.choices["completion"].add_argument("shell", choices=_SHELLS)
    return parser


def _choices(argument: Argument) -> list[str] | None:
    """Return the values that can be named, or None."""
    asked = plugin(argument.hint)
    if asked is not None:
        return [*asked.classes()]
    if argument.hint is bool:
        return ["true", "false"]
    named = [
        value
        for part in alternatives(argument.hint)
        if get_origin(part) is Literal
        for value in get_args(part)
    ]
    return [str(value) for value in named] or None
