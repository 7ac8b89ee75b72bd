"""Errors that a user can correct, and how messages name values, files and commands.

The command line shows a :class:`UserError` without a traceback (exit code 2). What users' own code raises
is put into a sentence by :mod:`flsel.errors.blame`.
"""

from __future__ import annotations

import difflib
import errno
import logging
import re
import shlex
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

# What torch's allocator says, and the system where not even torch's libraries fit.
_NO_MEMORY = ("DefaultCPUAllocator", "failed to map segment")
_LESS_MEMORY = "lower local.chunk, local.batch_size, evaluation.batch_size or the model's size"
# What stands between blanks and slashes; file systems take names of 255 bytes.
_LONG_NAME = re.compile(r"[^\s/]{261,}")
_MOST_SAID = 2000
_LARGER_BATCH = "set local.batch_size above 1, and local.last_batch to wrap, which fills the last of a pass"


# Disk, quota, handles, devices and mounts: what runs did not cause, and what is mended without them.
_MACHINES = {
    getattr(errno, name)
    for name in (
        "ENOSPC",
        "EDQUOT",
        "EMFILE",
        "ENFILE",
        "EIO",
        "EROFS",
        "ESTALE",
        "ENODEV",
        "ENOMEM",
        "EAGAIN",
    )
}


class UserError(ValueError):
    """Something the user gave is wrong; the message says what, where, and what would be right.

    Args:
        message: The sentence; names of absurd length in it are cut, and so is a sentence that fills a screen.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(bounded(str(message)))


class DivergedError(UserError):
    """Every client of a round returned a non-finite model, so the round has nothing to aggregate."""


class UndeclaredNeedError(UserError):
    """A selector asked for information that its ``needs`` do not declare."""


class RelayedError(Exception):
    """What a user's code raised in another process; its text is the reason that :func:`blamed` gave there."""


class Interrupted(Exception):
    """A signal stopped the run between rounds; its state is saved and the message says how to resume it."""


def keep_whole(made: type, *names: str) -> None:
    """Refuse a class that overrides what its base answers for.

    Raises:
        TypeError: If its body defines one of the names.
    """
    for name in names:
        if name in vars(made):
            raise TypeError(f"{made.__name__} must not define {name}, which its base answers for")


@contextmanager
def located(source: str | None) -> Iterator[None]:
    """Name the file that an error comes from; None leaves it alone."""
    try:
        yield
    except UserError as error:
        raise (error if source is None else UserError(f"{source}: {error}")) from error.__cause__


def sentence(error: BaseException) -> str | None:
    """Say what the system refused - memory, files, connections - or None if it was not the system."""
    message = message_of(error)
    # torch's own class would have to be imported; allocators on CPUs raise a plain RuntimeError.
    if type(error).__name__ == "OutOfMemoryError":
        return f"the accelerator's memory is not enough ({message}); {_LESS_MEMORY}."
    if isinstance(error, MemoryError) or any(words in message for words in _NO_MEMORY):
        return f"the memory is not enough{f' ({message})' if message else ''}; {_LESS_MEMORY}."
    if "more than 1 value per channel" in message:
        return f"batch normalisation takes no batch of one example ({message}); {_LARGER_BATCH}."
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{(error.strerror or str(error)).lower()}."
    return None


def machine_failed(error: BaseException | None) -> bool:
    """Tell whether an error goes back to a fault of the machine, such as a full disk, which may be mended."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _MACHINES:
            return True
        # torch.save hides a full disk behind a RuntimeError; the system's error is in its context.
        error = error.__cause__ or error.__context__
    return False


def raised_at(error: BaseException) -> str:
    """Write an error and where it was raised on one line: ``KeyError: 'x' (net.py, line 3)``."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {said} ({Path(at.filename).name}, line {at.lineno})"


def going_on(command: str, folder: str | Path) -> str:
    """Return the shell command that resumes what a folder holds: ``flsel train --resume 'my run'``."""
    return f"flsel {command} --resume {shlex.quote(str(folder))}"


def short(text: object, most: int = 300) -> str:
    """Put a text on one line, without its middle if it is longer than ``most`` characters.

    Characters that a terminal obeys or does not show, such as escape codes, become question marks.
    """
    line = " ".join(str(text).split())
    half = (most - 5) // 2
    cut = line if len(line) <= most else f"{line[:half]} ... {line[-half:]}"
    return "".join(character if character.isprintable() else "?" for character in cut)


def bounded(message: str) -> str:
    """Cut words that no file system takes as a name, and the middle of what is too long to be read."""
    cut = _LONG_NAME.sub(
        lambda name: f"{name[0][:100]}...{name[0][-60:]} ({len(name[0]):,} characters)", message
    )
    half = _MOST_SAID // 2
    return cut if len(cut) <= _MOST_SAID else f"{cut[:half]} ... {cut[-half:]}"


def edits(one: str, other: str) -> int:
    """Return how many letters must be put in, taken out or replaced to make one word of another."""
    row = list(range(len(other) + 1))
    for letter in one:
        above, row = row, [row[0] + 1]
        for at, found in enumerate(other):
            row.append(min(above[at + 1] + 1, row[at] + 1, above[at] + (letter != found)))
    return row[-1]


def closest(word: object, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant, or None."""
    by_lower = {name.lower(): name for name in reversed([*known])}
    found = difflib.get_close_matches(str(word)[:100].lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def meant(word: object, known: Iterable[str], before: str = "") -> str:
    """Return the end of a sentence: ``; did you mean NAME?``, or a full stop where nothing is close."""
    close = closest(word, known)
    return f"; did you mean {before}{close}?" if close else "."


def message_of(error: BaseException) -> str:
    """Return an error's own message on one line."""
    # A TracebackException's text stands in where an error's own __str__ fails.
    return short(traceback.TracebackException(type(error), error, None))


@cache
def say_once(text: str, level: int = logging.WARNING) -> None:
    """Log a text once in a process, however often it is due."""
    logging.getLogger("flsel").log(level, "%s", text)
