"""Read the declared arguments of a class or a function, and check values against them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from flsel.arguments.messages import alternatives, duration, rule, shown, sizes
from flsel.arguments.objects import is_a, objects
from flsel.arguments.ranges import Range, Tunable, UserPath
from flsel.arguments.signatures import keep_signatures
from flsel.errors import UserError
from flsel.files import home

S = TypeVar("S")


@dataclass(frozen=True)
class Argument:
    """One argument of a class or a function.

    Attributes:
        name: Its name.
        hint: Its type; ``Any`` where there is none.
        default: Its default, or ``MISSING``.
        range: Which numbers it takes.
        tunable: Its search range.
        path: Whether it may be the path of a file or a folder.
    """

    name: str
    hint: Any
    default: Any
    range: Range | None = None
    tunable: Tunable | None = None
    path: bool = False

    def holds(self, value: Any) -> bool:
        """Tell whether a value has the type and the range; types that are not plain are not judged."""
        if value is None or value is self.default:
            return value is self.default or {type(None), Any} & set(alternatives(self.hint)) != set()
        return any(_fits(value, part, self.range) for part in alternatives(self.hint))

    def rule(self) -> str:
        """Say which values it takes, in words: ``a whole number >= 1 or null``."""
        return rule(self.hint, self.range)


@functools.cache
def arguments(made: Callable[..., Any]) -> Mapping[str, Argument]:
    """Return what a class or a function takes, by name, in order; ``*args`` and ``**kwargs`` are left out."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except ValueError:  # made in C
        return {}
    hints = _type_hints(made)
    factories: dict[str, Callable[[], Any]] = {}
    if is_dataclass(made):
        factories = {f.name: f.default_factory for f in fields(made) if f.default_factory is not MISSING}
    found = dict[str, Argument]()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        name, default = parameter.name, parameter.default
        hint = hints.get(name, Any)
        hint, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if name in factories:
            default = factories[name]()
        found[name] = Argument(
            name,
            hint,
            MISSING if default is parameter.empty else default,
            next((note for note in notes if isinstance(note, Range)), None),
            next((note for note in notes if isinstance(note, Tunable)), None),
            any(isinstance(note, UserPath) for note in notes),
        )
    return found


def takes_any(made: Callable[..., Any]) -> bool:
    """Tell whether a class or a function has ``**kwargs``."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except ValueError:  # made in C
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def takes(made: Callable[..., Any], name: str) -> bool:
    """Tell whether a class or a function has an argument.

    ``**kwargs`` pass on to the base class, or to the class that a function declares to return.
    """
    bases: tuple[Callable[..., Any], ...] = (
        made.__mro__ if inspect.isclass(made) else (made, *_return_types(made))
    )
    for base in bases:
        if base is object:
            break
        if name in arguments(base):
            return True
        if not takes_any(base):
            break
    return False


def _return_types(made: Callable[..., Any]) -> tuple[type, ...]:
    """Return the class that a function declares to return, and its bases."""
    with suppress(NameError, TypeError):
        found = get_type_hints(inspect.unwrap(made)).get("return")
        return found.__mro__ if inspect.isclass(found) else ()
    return ()


def _type_hints(made: Callable[..., Any]) -> dict[str, Any]:
    """Return the types that a class or a function declares for its arguments, with their notes."""
    source = made if is_dataclass(made) or not inspect.isclass(made) else made.__init__
    try:
        return get_type_hints(source, include_extras=True)
    except (NameError, TypeError):
        # A type that is imported for type checkers only, or ``_: KW_ONLY`` in Python 3.10, costs but itself.
        bases = source.__mro__[::-1] if inspect.isclass(source) else (source,)
        found = dict[str, Any]()
        for base in bases:
            for name, hint in inspect.get_annotations(base).items():
                alone = SimpleNamespace(__annotations__={name: hint})
                with suppress(NameError, TypeError):
                    found |= get_type_hints(alone, vars(sys.modules[base.__module__]), include_extras=True)
        return found


def check_arguments(made: Callable[..., Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Check that values are what a class or a function declares of the arguments of their names.

    Args:
        made: The class or function.
        values: Values by name; others than arguments are left alone.
        prefix: What stands before the names in messages, such as ``local.``.

    Raises:
        UserError: Naming the first that is not.
    """
    for name, argument in arguments(made).items():
        if name in values and not argument.holds(values[name]):
            value = values[name]
            raise UserError(
                f"{prefix}{name} must be {argument.rule()}{sizes(value)}, "
                f"got {shown(value)}{duration(value, argument.range)}."
            )


def settings_of(made: type[S], given: Mapping[str, Any], function: str) -> S:
    """Make a dataclass of settings of a function's arguments by name.

    Args:
        made: The class.
        given: The arguments.
        function: What takes them, for the message.

    Raises:
        UserError: If it has no setting of one of the names, or a value is not what is declared.
    """
    known = [field.name for field in fields(made)]  # type: ignore[arg-type]
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise UserError(f"{function} takes no {unknown}; its settings are {', '.join(known)}.")
    return made(**given)


def check_settings(settings: Any, prefix: str = "") -> None:
    """Check every field of a dataclass of settings, also those that are no plain values, and find its paths.

    Args:
        settings: The settings.
        prefix: What stands before the names in messages, such as ``local.``.

    Raises:
        UserError: Naming the first that is not what is declared.
    """
    made: Callable[..., Any] = type(settings)
    check_arguments(made, vars(settings), prefix)
    for name, argument in arguments(made).items():
        value = getattr(settings, name)
        if not is_a(value, argument.hint):
            asked = objects(argument.hint, name, argument.default)
            raise UserError(f"{prefix}{name} must be {asked}, got {shown(value)}.")
    _find_paths(settings)


def with_paths(made: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the user's home in the place of ``~`` in those that are declared as paths."""
    known = arguments(made)
    return {
        name: _found(value) if name in known and known[name].path else value for name, value in values.items()
    }


def _find_paths(made: Any) -> None:
    kind: Callable[..., Any] = type(made)
    own = {name: getattr(made, name) for name in arguments(kind) if hasattr(made, name)}
    for name, value in with_paths(kind, own).items():
        if value is not own[name]:
            object.__setattr__(made, name, value)  # it may be frozen


def _found(value: Any) -> Any:
    return str(home(value)) if isinstance(value, str) and value.startswith("~") else value


class Checked:
    """Base class: checks methods when a subclass is defined, and a dataclass's arguments when it is made."""

    def __init_subclass__(cls) -> None:
        """Check that its methods take what those of the base that flsel knows take."""
        super().__init_subclass__()
        for base in cls.__mro__[1:]:
            if Checked in base.__bases__:
                keep_signatures(cls, base)

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            UserError: If one is not what the class declares.
        """
        check_arguments(type(self), vars(self))
        _find_paths(self)


def _fits(value: Any, hint: Any, within: Range | None) -> bool:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (int, float):
        kind = Integral if origin is int else Real
        number = isinstance(value, kind) and not isinstance(value, bool)
        return number and (within is None or value in within)
    if origin in (bool, str, type(None)):
        # No name and no path can hold a NUL.
        return isinstance(value, origin) and not (isinstance(value, str) and "\0" in value)
    if origin is Literal:
        return value in inner
    if origin in (tuple, list) and inner and inner[0] in (int, float):
        if not isinstance(value, tuple | list) or (within is not None and not value):
            return False
        return all(_fits(item, inner[0], within) for item in value)
    return True
