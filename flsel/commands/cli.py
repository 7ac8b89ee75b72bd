"""The command line, ``flsel COMMAND``. Light: a command loads what it needs when it is called."""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from flsel import __version__
from flsel.errors import Interrupted, UserError, blamed, bounded, closest, sentence, short, written_by
from flsel.execution.signals import like_ctrl_c
from flsel.files.escaping import one_line

# The module of each command, and what it is for.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "train": (
        "flsel.commands.train",
        "execute one federated run: flsel train [--config FILE] [--key value ...]",
    ),
    "tune": (
        "flsel.commands.tuning",
        "search for settings: flsel tune --config FILE [--space FILE] [--key value ...]",
    ),
    "compare": (
        "flsel.commands.comparing",
        "compare selectors over seeds: flsel compare --selectors Uniform,PowD --seeds 5",
    ),
    "choose": (
        "flsel.commands.race_command",
        "find the selector for a federation by a race: flsel choose --config FILE --margin 1",
    ),
    "place": (
        "flsel.commands.place",
        "place a selector on an atlas of other selectors: flsel place my_selector.MySelector",
    ),
    "atlas": (
        "flsel.commands.atlas",
        "print an atlas with the placements that were contributed: flsel atlas [NAME]",
    ),
    "dashboard": (
        "flsel.commands.dashboard",
        "make a W&B report and saved workspaces of a project: flsel dashboard --project P",
    ),
    "data": (
        "flsel.commands.data",
        "show how examples are split over clients: flsel data [--config FILE] [--key value ...]",
    ),
    "check": (
        "flsel.commands.check",
        "check a selector against the contract: flsel check my_selector.MySelector",
    ),
    "deploy": (
        "flsel.commands.deploy",
        "write a Flower app that runs a config over real nodes: flsel deploy --nodes 3 [--config FILE]",
    ),
    "configs": (
        "flsel.commands.configs",
        "list the shipped files for --config and --space: flsel configs [NAME]",
    ),
    "schema": (
        "flsel.commands.print_schema",
        "print the JSON schema of the settings, for editors: flsel schema > flsel.schema.json",
    ),
    "completion": (
        "flsel.commands.completion",
        "print a script for completion in a shell: flsel completion bash",
    ),
}
# The help of commands whose settings are a run's.
HELP = {name: Path(__file__).with_name(f"{name}_help.txt") for name in ("train", "data")}
_WRITTEN: dict[tuple[str, ...], Path] = {
    (name, word): path for name, path in HELP.items() for word in ("--help", "-h")
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments without the program's name; the process's own if not given.

    Returns:
        Exit code: 0; 1 for a selector that breaks the contract; 2 for something the user can mend; 130 after
        Ctrl-C; 141 if the output's pipe is closed.
    """
    # A notebook's, which need not be there: pictures go to files.
    os.environ.pop("MPLBACKEND", None)
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = [word for word in given if word != "--debug"]
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot encode is still said
            stream.reconfigure(errors="backslashreplace")
    try:
        with _libraries_warn_last(), like_ctrl_c():
            _check_text(arguments)
            return _run(arguments)
    except UserError as error:
        if arguments != given:
            traceback.print_exc()
        return _stop(f"error: {error}", 2)
    except Interrupted as stop:
        return _stop(str(stop), 130)
    except KeyboardInterrupt:
        return _stop(
            "stopped; resume what had started with: flsel train --resume RUN, flsel tune --resume SWEEP, "
            "flsel compare --resume COMPARISON, flsel choose --resume RACE",
            130,
        )
    except BrokenPipeError:
        # The pipe is closed (flsel data | head). Without this, Python complains when it flushes at its end.
        # A run continues without output and ends with its own code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except BaseException as error:
        said = blamed(error) or sentence(error)
        if said is None:  # a bug, which must look like one, or the parser's own exit
            raise
        if arguments != given:
            traceback.print_exc()
        return _stop(f"error: {said}", 2)


def _run(arguments: list[str]) -> int:
    if tuple(arguments) in _WRITTEN:
        # Put together by docs/generate.py: to ask the settings for it means to import torch.
        print(_WRITTEN[tuple(arguments)].read_text(encoding="utf-8"), end="")
        return 0
    if arguments and arguments[0] in COMMANDS:
        # A console script does not see the current folder, where users keep their models. Last, so that a
        # file there cannot take the place of an installed package.
        try:
            here = os.getcwd()
        except FileNotFoundError:
            raise UserError("the folder flsel was started in is gone; change to one that exists.") from None
        if here not in sys.path:
            sys.path.append(here)
        return int(load(arguments[0]).main(arguments[1:]))
    if arguments and arguments[0] not in ("-h", "--help", "--version"):
        close = closest(arguments[0], COMMANDS)
        advice = f"did you mean {close}?" if close else f"there are {', '.join(COMMANDS)}."
        raise UserError(f"there is no command {short(arguments[0], 60)}; {advice}")
    _top_level().parse_args(arguments[:1] or ["--help"])
    return 0


@contextmanager
def _libraries_warn_last() -> Iterator[None]:
    """Show what libraries warn of when the command has ended, and nothing beside a refusal.

    A warning of the user's own code is shown at once.
    """
    held, show = list[Callable[[], None]](), warnings.showwarning

    def hold(message: Any, category: Any, filename: str, *place: Any) -> None:
        if written_by(filename) == "user":
            show(message, category, filename, *place)
        else:
            held.append(partial(show, message, category, filename, *place))

    warnings.showwarning = hold  # type: ignore[assignment]
    try:
        yield
    except UserError:
        held.clear()
        raise
    finally:
        if warnings.showwarning is hold:
            warnings.showwarning = show
        for warn in held:
            warn()


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text, which no file of settings could hold, and empty words.

    Raises:
        UserError: If there are some, also since the locale takes other text for such.
    """
    for before, word in zip(("", *arguments), arguments, strict=False):
        key, equals, value = word.partition("=")
        if not word or (key.startswith("--") and equals and not value):
            where = key if word else before if before.startswith("--") else "an argument"
            raise UserError(f"{where} must not be an empty text: give a value, or leave it out.")
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UserError(
                f"{short(ascii(word), 60)} is no text in this locale: give it in its encoding, "
                "or set LC_ALL=C.UTF-8."
            )


def load(command: str) -> ModuleType:
    """Import the module of a command.

    Hundreds of thousands of objects come to stay. To look for garbage among them while they are made, and
    again at the end, would be a quarter of the time.
    """
    name = COMMANDS[command][0]
    if name not in sys.modules:
        collects = gc.isenabled()
        gc.disable()
        try:
            import_module(name)
        finally:
            if collects:
                gc.enable()
        gc.freeze()
    return sys.modules[name]


def _open_streams() -> None:
    """Open what the caller closed, lest a file of a run's become the standard output of what it starts."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    # Each is None where the caller closed it.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _stop(message: str, code: int) -> int:
    print(
        "flsel:", bounded(one_line(" ".join(line.strip() for line in message.splitlines()))), file=sys.stderr
    )
    return code


def _top_level() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:12}{text}" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="flsel",
        usage="flsel COMMAND [options]",
        description="Which clients should a federated round train on, and with which settings?",
        epilog=f"commands:\n{lines}\n\n'flsel COMMAND --help' lists the options of a command; with --debug "
        "an error shows where it was raised.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"flsel {__version__}")
    return parser
