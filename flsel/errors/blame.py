"""The one place that runs, blames and imports what may be the user's own code.

Whatever calls such code does so inside :func:`users_code`; whatever imports it by name calls
:func:`imported`. An error of flsel itself goes through both unchanged: a bug must look like one.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from flsel.errors.user_errors import (
    Interrupted,
    RelayedError,
    UserError,
    meant,
    message_of,
    raised_at,
    sentence,
    short,
)

_OURS = tuple(f"{Path(__file__).parents[2] / name}/" for name in ("flsel", "flsel_tune", "tune/flsel_tune"))
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",
)
_PACKAGES = {"flsel", "flsel_tune"}
# "Mine.select() takes 1 positional argument but 2 were given"; a lambda's name tells nothing.
_MISCALLED = re.compile(r"(\w+)[\w.<>]*\(\) (?:takes|missing|got) ")
_SITES = {"site-packages", "dist-packages"}


@contextmanager
def users_code(what: str, *, reads: bool = False, wide: bool = False) -> Iterator[None]:
    """Run code that may be the user's, and put every error that it raises into one sentence.

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
                raise UserError(f"{start}: {lack}{hidden(parts[0])}")
            found = getattr(found, parts[at])
    return found


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


def _reason(error: BaseException, reads: bool) -> str | None:
    """Name the user's code that raised an error, the error and its line; None if flsel itself raised it."""
    # In a function of its own: a frame that keeps frames, and all that they hold, waits for the collector.
    frames = list(traceback.walk_tb(error.__traceback__))
    # The first two are those of users_code and its caller.
    users = [(frame, line) for frame, line in frames[2:] if _home(frame) == "user"]
    if not reads and not users and _home(frames[-1][0]) == "ours" and not _misfits(error):
        return None
    return _because(error, users)


def _misfits(error: BaseException) -> bool:
    """Tell whether a function of the user's own does not take what flsel calls it with.

    Python blames the caller for that. The error's text begins with the function's qualified name.
    """
    called = _MISCALLED.match(message_of(error)) if type(error) is TypeError else None
    if called is None:
        return False
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in _PACKAGES]
    return not any(called[1] in vars(module) for module in modules)


def _because(error: BaseException, users: list[tuple[FrameType, int]]) -> str:
    lack = None if isinstance(error, OSError) else sentence(error)
    return lack or _statement(error, users)


def _statement(error: BaseException, users: list[tuple[FrameType, int]]) -> str:
    message = message_of(error)
    # A refused value is what a ValueError says; its type would say it twice.
    said = message if type(error) is ValueError and message else f"{type(error).__name__}: {message}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"SyntaxError: {error.msg} ({Path(error.filename).name}, line {error.lineno})."
    said = said.rstrip(".: ")
    if not users:
        *_, (raising, _) = traceback.walk_tb(error.__traceback__)
        return f"{said}." if message else f"{_named(raising)} raised {said}."
    (first, _), (last, line) = users[0], users[-1]
    who = "" if first.f_code.co_name in ("__init__", "<module>") else f"{_named(first)} raised "
    return f"{who}{said} ({Path(last.f_code.co_filename).name}, line {line})."


def _named(frame: FrameType) -> str:
    """Return a function's name, and that of its object's class."""
    owner = type(frame.f_locals["self"]).__name__ + "." if "self" in frame.f_locals else ""
    return f"{owner}{frame.f_code.co_name}"


def _home(frame: FrameType) -> str:
    return written_by(frame.f_code.co_filename)


def written_by(file: str) -> str:
    """Tell whether a file of code is ``ours``, a ``library``'s or the ``user``'s."""
    if file.startswith(_OURS):
        return "ours"
    # Packages may lie outside this environment: --system-site-packages, pip install --user, PYTHONPATH.
    installed = file.startswith(_LIBRARIES) or not _SITES.isdisjoint(Path(file).parts)
    return "library" if installed else "user"


def hidden(name: str) -> str:
    """Tell of a file in the current folder that an installed module of its name keeps from being imported."""
    own, taken = Path(f"{name}.py"), getattr(sys.modules.get(name), "__file__", None)
    if not own.is_file() or (taken and own.resolve() == Path(taken).resolve()):
        return ""
    return f" Your {own} is not seen beside the installed module of that name: rename it."


def _lacks(home: Any, path: str, name: str) -> str:
    known = (public for public in dir(home) if not public.startswith("_"))
    return f"{path} has no {name}{meant(name, known, f'{path}.')}"
