"""The command line: ``flsel train | data``. Light: a command loads what it needs when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from flsel import __version__
from flsel.errors import Interrupted, UserError

COMMANDS = {
    "train": "play one federated run: flsel train [--config FILE] [--key value ...]",
    "data": "show how examples are dealt to clients: flsel data [--config FILE] [--key value ...]",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments without the program's name; the process's own if not given.

    Returns:
        Exit code: 0, 2 for something the user can mend, 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and arguments[0] in COMMANDS:
            command = import_module(f"flsel.commands.{arguments[0]}")
            return int(command.main(arguments[1:]))
        _top_level().parse_args(arguments or ["--help"])
    except UserError as error:
        print(f"flsel: error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"flsel: {stop}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print(
            "flsel: stopped; a run that had a checkpoint goes on with: flsel train --resume RUN",
            file=sys.stderr,
        )
        return 130
    return 0


def _top_level() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:8}{text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="flsel",
        usage="flsel COMMAND [options]",
        description="Which clients should a federated round train on, and with which settings?",
        epilog=f"commands:\n{lines}\n\n'flsel COMMAND --help' lists the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"flsel {__version__}")
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND", help=argparse.SUPPRESS)
    return parser
