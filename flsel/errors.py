"""Errors that a user can mend, and the one place that turns what users' code raises into a sentence.

The command line shows a :class:`UserError` without a traceback (exit code 2). Whatever calls code that may be
the user's own does so inside :func:`users_code`; whatever imports it by name calls :func:`imported`. An
error of flsel itself goes through both unchanged: a bug must look like one.
"""

from __future__ import annotations

import difflib
import errno
import re
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

_OURS = tuple(f"{Path(__file__).parents[1] / name}/" for name in ("flsel", "flsel_tune", "tune/flsel_tune"))
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",
)
_SITES = {"site-packages", "dist-packages"}
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
    """A signal stopped the run between rounds; its state is saved and the message says how to go on."""


@contextmanager
def users_code(what: str, *, reads: bool = False, wide: bool = False) -> Iterator[None]:
    """Run code that may be the user's, and put whatever it raises into one sentence.

    An error that flsel's own code raised, without the user's or a library's in between, passes unchanged.

    Args:
        what: What failed, such as ``model my.Net cannot be built``; the reason follows after a colon.
        reads: The block does nothing but read what the user gave, so that every error is about that.
        wide: Most of the block is flsel's own: a library's error is the user's only by way of his code.

    Raises:
        UserError: If the block raises anything but a :class:`UserError`, an :class:`Interrupted` or a
            Ctrl-C. It names the user's class and method, the error, the file and the line.
    """
    try:
        yield
    except (UserError, Interrupted, KeyboardInterrupt):
        raise
    except BaseException as error:
        reason = blamed(error) if wide else _reason(error, reads)
        if isinstance(error, RelayedError):
            raise UserError(f"{what}: {error}") from None
        if reason is None:
            raise
        raise UserError(f"{what}: {reason}") from error


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


def imported(key: str, path: str) -> Any:
    """Import what a dotted path names: a module, or a class, function or value in one.

    Args:
        key: The setting that names it, for the message.
        path: Such as ``my_model.Net``.

    Raises:
        UserError: If there is no such thing, or the user's module fails while it is imported.
    """
    parts, start = path.split("."), f"{key} cannot be {short(path)}"
    if not all(part.isidentifier() for part in parts):
        raise UserError(f"{start}, which is no import path, such as my_module.MyClass.")
    failed, found, used = f"{start}, whose import failed", None, 0
    while used < len(parts):
        name = ".".join(parts[: used + 1])
        # Python 3.13 keeps the frames of an import that fails, and all that they hold, for the collector.
        if found is not None and not hasattr(found, "__path__") and name not in sys.modules:
            break
        try:
            with users_code(failed):
                found = import_module(name)
        except UserError as error:
            if not isinstance(error.__cause__, ModuleNotFoundError) or error.__cause__.name != name:
                raise
            break
        used += 1
    if used == 0:
        raise UserError(
            f"{start}: there is no module {parts[0]} in the current folder or among the installed packages."
        )
    for at in range(used, len(parts)):
        with users_code(failed):
            if not hasattr(found, parts[at]):
                lack = _lacks(found, ".".join(parts[:at]), parts[at])
                raise UserError(f"{start}: {lack}{_hidden(parts[0])}")
            found = getattr(found, parts[at])
    return found


def sentence(error: BaseException) -> str | None:
    """Say what the system refused - memory, files, connections - or None if it was not the system."""
    message = _message(error)
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


def blamed(error: BaseException) -> str | None:
    """Say what the user's code raised, even in a method that Python calls by itself; None if it did not."""
    users = [part for part in traceback.walk_tb(error.__traceback__) if _home(part[0]) == "user"]
    return _because(error, users) if users else None


def relayed(error: Exception) -> Exception:
    """Return what a process of a run sends of an error to the one that asked it.

    Returns:
        A :class:`UserError` as it is; a :class:`RelayedError` of what the user's code raised, which
        :func:`users_code` puts into the sentence that it would have without another process; a
        RuntimeError that says where flsel itself failed.
    """
    if isinstance(error, UserError):
        return error
    reason = _reason(error, reads=False)
    return RuntimeError(f"in another process: {raised_at(error)}") if reason is None else RelayedError(reason)


def raised_at(error: BaseException) -> str:
    """Write an error and where it was raised on one line: ``KeyError: 'x' (net.py, line 3)``."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {said} ({Path(at.filename).name}, line {at.lineno})"


def going_on(command: str, folder: str | Path) -> str:
    """Return what goes on with a folder, for a shell: ``flsel train --resume 'my run'``."""
    return f"flsel {command} --resume {shlex.quote(str(folder))}"


def short(text: object, most: int = 300) -> str:
    """Put a text on one line, without its middle if it is longer than ``most`` characters."""
    line = " ".join(str(text).split())
    half = (most - 5) // 2
    return line if len(line) <= most else f"{line[:half]} ... {line[-half:]}"


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


def _reason(error: BaseException, reads: bool) -> str | None:
    """Say who raised what, where; None where flsel itself did."""
    # In a function of its own: a frame that keeps frames, and all that they hold, waits for the collector.
    frames = list(traceback.walk_tb(error.__traceback__))
    # The first two are those of users_code and its caller.
    users = [(frame, line) for frame, line in frames[2:] if _home(frame) == "user"]
    if not reads and not users and _home(frames[-1][0]) == "ours":
        return None
    return _because(error, users)


def _because(error: BaseException, users: list[tuple[FrameType, int]]) -> str:
    lack = None if isinstance(error, OSError) else sentence(error)
    return lack or _told(error, users)


def _told(error: BaseException, users: list[tuple[FrameType, int]]) -> str:
    message = _message(error)
    # A refused value is what a ValueError says; its type would say it twice.
    said = message if type(error) is ValueError and message else f"{type(error).__name__}: {message}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"SyntaxError: {error.msg} ({Path(error.filename).name}, line {error.lineno})."
    said = said.rstrip(".: ")
    if not users:
        return f"{said}."
    (first, _), (last, line) = users[0], users[-1]
    owner = type(first.f_locals["self"]).__name__ + "." if "self" in first.f_locals else ""
    name = first.f_code.co_name
    who = "" if name in ("__init__", "<module>") else f"{owner}{name} raised "
    return f"{who}{said} ({Path(last.f_code.co_filename).name}, line {line})."


def _message(error: BaseException) -> str:
    # A TracebackException's text stands in where an error's own __str__ fails.
    return short(traceback.TracebackException(type(error), error, None))


def _home(frame: FrameType) -> str:
    return written_by(frame.f_code.co_filename)


def written_by(file: str) -> str:
    """Tell whether a file of code is ``ours``, a ``library``'s or the ``user``'s."""
    if file.startswith(_OURS):
        return "ours"
    # Packages may lie outside this environment: --system-site-packages, pip install --user, PYTHONPATH.
    installed = file.startswith(_LIBRARIES) or not _SITES.isdisjoint(Path(file).parts)
    return "library" if installed else "user"


def _hidden(name: str) -> str:
    """Tell of a file in the current folder that an installed module of its name keeps from being imported."""
    own, taken = Path(f"{name}.py"), getattr(sys.modules.get(name), "__file__", None)
    if not own.is_file() or (taken and own.resolve() == Path(taken).resolve()):
        return ""
    return f" Your {own} is not seen beside the installed module of that name: rename it."


def _lacks(home: Any, path: str, name: str) -> str:
    known = (public for public in dir(home) if not public.startswith("_"))
    return f"{path} has no {name}{meant(name, known, f'{path}.')}"
