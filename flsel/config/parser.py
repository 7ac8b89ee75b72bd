"""Give settings that were laid over each other the types that are declared, and build what they describe."""

from __future__ import annotations

import inspect
from argparse import ArgumentError
from collections.abc import Callable, Mapping
from dataclasses import MISSING, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin

from jsonargparse import ArgumentParser

from flsel.arguments import Argument, alternatives, arguments, check_arguments, shown, takes_any
from flsel.arguments.class_paths import check_inside, refuse_standard
from flsel.arguments.spec import Spec
from flsel.config.layers import Layers
from flsel.config.plugin import Plugin, class_and_arguments, items, plugin, rule
from flsel.config.run_settings import RunSettings
from flsel.errors import UserError, located, meant
from flsel.files.yaml import is_other_number, loaded

Settings = TypeVar("Settings", bound=RunSettings)

# What a run tells a model, or a metric, that asks for it.
FILLED = ("num_classes", "input_shape")
_ASKING = ("model", "evaluation.metrics")


def make_settings(made: type[Settings], layers: Layers) -> Settings:
    """Make a run's settings of what is laid; what is not given is the default.

    Raises:
        UserError: If a value has the wrong type or range, with the file that set it.
    """
    try:
        settings: Settings = _made(made, layers.values, "")
        own = getattr(getattr(settings.model, "made", None), "configure_optimizers", None)
        if own is not None and "local.optimizer" in layers.implied:
            raise UserError(
                f"local.optimizer must name a class before its arguments are set, since model "
                f"{own.__qualname__.partition('.')[0]} has an optimizer of its own: --local.optimizer NAME."
            )
        return settings
    except UserError as error:
        with located(layers.source(str(error))):
            raise


def to_types(key: str, made: Callable[..., Any], given: Mapping[str, Any], skip: int = 0) -> dict[str, Any]:
    """Give the arguments of a class or a function the types that it declares, and add its defaults.

    Args:
        key: The setting that it is, for messages; may be empty.
        made: The class or function.
        given: Its arguments; texts of the command line among them.
        skip: Leading arguments that the settings do not give.

    Raises:
        UserError: If an argument is unknown, missing, or not what is declared.
    """
    known = dict([*arguments(made).items()][skip:])
    prefix, name = f"{key}." if key else "", getattr(made, "__name__", str(made))
    found = dict[str, Any]()
    for argument in known.values():
        if argument.name in given:
            found[argument.name] = _typed(f"{prefix}{argument.name}", argument, given[argument.name])
        elif argument.default is not MISSING:
            found[argument.name] = argument.default
        elif key.partition("[")[0] not in _ASKING or argument.name not in FILLED:
            raise UserError(f"{prefix}{argument.name} must be set: {name} has no default for it.")
    for other in (name for name in given if name not in known):
        if not takes_any(made):
            takes = f"takes {', '.join(known) or 'no arguments'}{meant(other, known)}"
            raise UserError(f"{prefix}{other} is not an argument of {name}, which {takes}")
        found[other] = _typed(f"{prefix}{other}", Argument(other, Any, MISSING), given[other])
    check_arguments(made, found, prefix)
    return found


def _made(made: Any, values: Mapping[str, Any], prefix: str) -> Any:
    """Make the settings, or a group of them; what is not given is the default."""
    given = dict[str, Any]()
    for name, argument in arguments(made).items():
        key = f"{prefix}{name}"
        if is_dataclass(argument.hint):
            given[name] = _made(argument.hint, values, f"{key}.")
        elif key in values:
            given[name] = _value(key, argument, values[key])
    return made(**given)


def _value(key: str, argument: Argument, value: Any) -> Any:
    """Give a setting its type, and build the classes that only store arguments."""
    asked, each = plugin(argument.hint), items(argument.hint)
    if asked is not None:
        spec = None if value is None else _spec(key, asked, value)
        return spec if spec is None or asked.factory else spec.build()
    if each is None:
        return _typed(key, argument, value)
    listed = loaded(key, value)
    if "class_path" in listed if isinstance(listed, Mapping) else _is_name(listed):
        listed = [listed]  # a class alone
    if not isinstance(listed, list | tuple):
        raise _mismatch(key, argument, value)
    specs = (_spec(f"{key}[{n}]", each, item) for n, item in enumerate(listed))
    return tuple(spec if each.factory else spec.build() for spec in specs)


def _spec(key: str, asked: Plugin, value: Any) -> Spec:
    name, given = class_and_arguments(key, value)
    made = asked.find(key, name)
    found = to_types(key, made, given, asked.given)
    # What a function has as defaults stays with it: its path alone says as much.
    kept = found if inspect.isclass(made) else {name: found[name] for name in given}
    return Spec(f"{made.__module__}.{made.__qualname__}", kept, key, (asked.base,))


def _typed(key: str, argument: Argument, value: Any) -> Any:
    """Give a value the type that is declared for it, by jsonargparse."""
    if _has_type(value, argument.hint):
        return value
    asked, read = plugin(argument.hint), loaded(key, value)
    named = isinstance(read, str) or (isinstance(read, Mapping) and "class_path" in read)
    if asked is not None and not asked.factory and named:
        # A class among the arguments of another, which may be named as short as a setting of its own.
        spec = _spec(key, asked, read)
        return {"class_path": spec.class_path, "init_args": dict(spec.init_args)}
    # An argument without a type whose default is a class or a function is read as an import path.
    path = argument.hint is Any and callable(argument.default)
    parser = _reader(type | Callable | Any if path else argument.hint)
    check_inside(key, read)
    for part in alternatives(argument.hint) if not path else (Callable,):
        if Callable in (part, get_origin(part)) or part is type:
            refuse_standard(key, read)
    try:
        found = parser.parse_object({"value": value}, defaults=False).as_dict()["value"]
    except (ArgumentError, ValueError, RecursionError) as error:
        raise _mismatch(key, argument, read) from error
    if isinstance(value, str) and not isinstance(found, str) and is_other_number(value.strip()):
        raise _mismatch(key, argument, value)
    check_inside(key, found)
    return found


def _has_type(value: Any, hint: Any) -> bool:
    """Tell whether jsonargparse, which takes a millisecond, would return a plain value as it is."""
    parts = [part for part in alternatives(hint) if part is not type(None)]
    if value is None:
        return len(parts) < len(alternatives(hint))
    if len(parts) != 1:
        return False
    choices = get_args(parts[0]) if get_origin(parts[0]) is Literal else ()
    return (type(value) in (bool, int, float) and type(value) is parts[0]) or (
        isinstance(value, str) and value in choices
    )


def _reader(hint: Any) -> ArgumentParser:
    """Return the parser of a type's values; to make one takes longer than to parse with it."""
    try:
        hash(hint)
    except TypeError:
        return _made_reader.__wrapped__(hint, "")
    # Unions of the same types in another order are equal, and are tried in that order.
    return _made_reader(hint, str(hint))


@cache
def _made_reader(hint: Any, text: str) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    try:
        parser.add_argument("--value", type=hint)
    except ValueError:  # a type that only its own module knows
        parser.add_argument("--value", type=Any)
    return parser


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "null" and value.replace(".", "").isidentifier()


def _mismatch(key: str, argument: Argument, value: Any) -> UserError:
    """Return the error that says that a value is not what a setting takes."""
    allowed = rule(argument)
    if "text" in allowed and isinstance(value, int | float):
        return UserError(f"{key} must be {allowed}, got {shown(value)}; write it in quotes.")
    if allowed.startswith("a list") and _is_name(value):
        return UserError(f"{key} must be {allowed}, got {shown(value)}: write [{value}].")
    if allowed.startswith("a list of texts") and isinstance(value, str):
        advice = "put each in quotes" if value.startswith("[") else f'write ["{value}"]'
        return UserError(f"{key} must be {allowed}, got {shown(value)}: {advice}.")
    names = allowed.removeprefix("one of ").split(", ") if "one of " in allowed else ()
    return UserError(f"{key} must be {allowed}, got {shown(value)}{meant(value, names)}")
