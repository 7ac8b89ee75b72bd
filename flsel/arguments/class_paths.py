"""What an import path in a file of settings may call: the one rule for every plug-in.

A file of settings may come from somebody else. Of what it names only two kinds are called: classes of the
base that a setting declares, and functions that declare to return it. A function of the user's own modules
need not declare: what it returns is checked. Nothing of Python's standard library is imported or called.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

from flsel.arguments.messages import alternatives
from flsel.errors import UserError, hidden, imported, written_by


def callable_at(key: str, path: str, *bases: type) -> Callable[..., Any]:
    """Import the class or the function that a setting names, if it may be called.

    Args:
        key: The setting, for messages.
        path: Its import path.
        bases: What it must be derived from, or return, one of them; none where anything fits that is not of
            the standard library.

    Raises:
        UserError: If there is no such thing, or it may not be called.
    """
    refuse_standard(key, path)
    made = imported(key, path)
    if not inspect.isclass(made) and not hasattr(made, "__qualname__"):
        raise UserError(f"{key} must be a class or a function, and {path} is a {type(made).__name__}.")
    check_callable(key, made, *bases)
    found: Callable[..., Any] = made
    return found


def check_callable(key: str, made: Any, *bases: type) -> None:
    """Refuse a class or a function that a setting may not call.

    Raises:
        UserError: If it is of the standard library, or does not make what it should.
    """
    made = made.func if isinstance(made, partial) else made
    wanted = " or ".join(base.__name__ for base in bases)
    module = getattr(made, "__module__", None) or type(getattr(made, "__self__", made)).__module__
    path = f"{module}.{getattr(made, '__qualname__', type(made).__name__)}"
    refuse_standard(key, path)
    if not bases:
        return
    if inspect.isclass(made):
        if not any(issubclass(made, base) for base in bases):
            raise UserError(f"{key} must be derived from {wanted}, and {path} is not.")
        return
    declared = _declared(made)
    if any(inspect.isclass(part) and issubclass(part, base) for part in declared for base in bases):
        return
    if declared:
        said = " or ".join(getattr(part, "__name__", str(part)) for part in declared)
        raise UserError(f"{key} must make a {wanted}, and {path} declares that it returns {said}.")
    if not _is_users(made):
        raise UserError(
            f"{key} must make a {wanted}, and {path} does not declare what it returns: call it in a function "
            "of your own, and name that."
        )


def check_made(key: str, path: str, made: Any, *bases: type) -> None:
    """Refuse what a function returned where it is not what its setting declares.

    Raises:
        UserError: If it is not.
    """
    if bases and not isinstance(made, bases):
        wanted = " or ".join(base.__name__ for base in bases)
        raise UserError(f"{key} must make a {wanted}, and {path} returned {type(made).__name__}.")


def refuse_standard(key: str, path: Any) -> None:
    """Refuse an import path into Python's standard library, before anything is imported.

    Raises:
        UserError: If it is one.
    """
    if isinstance(path, str) and path.partition(".")[0] in sys.stdlib_module_names:
        raise UserError(
            f"{key} cannot be {path[:100]}: settings call nothing of Python's standard library; call it in a "
            f"function of your own, and name that.{hidden(path.partition('.')[0])}"
        )


def check_inside(key: str, value: Any) -> None:
    """Refuse what an argument names or holds, however deep, that a setting may not call.

    Args:
        key: The argument, for messages.
        value: Its value: plain, or with classes and functions that were imported for it.

    Raises:
        UserError: If there is such a thing.
    """
    if isinstance(value, Mapping):
        refuse_standard(key, value.get("class_path"))
        for name, item in value.items():
            check_inside(f"{key}.{name}", item)
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            check_inside(f"{key}[{at}]", item)
    elif not (inspect.isclass(value) and value.__module__ == "builtins") and (
        inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, partial)
    ):
        check_callable(key, value)


def bases_of(hint: Any) -> tuple[type, ...]:
    """Return the classes that a type asks for, of which an object in its place must be one."""
    found = list[type]()
    for part in alternatives(hint):
        origin, inner = get_origin(part), get_args(part)
        if origin in (list, tuple):
            found += bases_of(inner[0]) if inner else ()
        elif origin is Callable:
            found += bases_of(inner[-1]) if inner else ()
        elif inspect.isclass(part) and part is not Any and part.__module__ != "builtins":
            found.append(part)
    return tuple(found)


def _declared(made: Any) -> list[Any]:
    """Return the types that a function declares to return; none where it says nothing of use."""
    try:
        hint = get_type_hints(inspect.unwrap(made)).get("return", Any)
    except (NameError, TypeError, AttributeError, ValueError):
        return []
    parts = [get_origin(part) or part for part in alternatives(hint) if part is not type(None)]
    # Any, Self and type variables promise nothing.
    return [part for part in parts if inspect.isclass(part) and part not in (object, Any)]


def _is_users(made: Any) -> bool:
    """Tell whether a function is of a module of the user's own, and of no package that is installed."""
    code = getattr(inspect.unwrap(made), "__code__", None)
    return made.__module__ == "__main__" or (code is not None and written_by(code.co_filename) == "user")
