"""The settings' keys with their declarations, and the classes that fit where a class is asked for."""

from __future__ import annotations

import functools
import inspect
import pkgutil
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from typing import Any, get_args, get_origin

from jsonargparse import ArgumentParser
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flsel.arguments import Argument, alternatives, arguments, shown
from flsel.availability import Availability
from flsel.config.describe import describe
from flsel.config.later import Callback
from flsel.config.run import RunConfig
from flsel.config.yaml_file import loaded
from flsel.errors import UserError, closest, imported, meant
from flsel.objectives import Objective
from flsel.partition import Partition
from flsel.selector import Selector

# Where the classes live that can be named without a module path.
HOMES: Mapping[type, str] = {
    Selector: "flsel.selectors",
    Partition: "flsel.partition",
    Availability: "flsel.availability",
    Objective: "flsel.objectives",
    nn.Module: "flsel.models",
    Optimizer: "torch.optim",
    LRScheduler: "torch.optim.lr_scheduler",
    Callback: "lightning.pytorch.callbacks",
}


@dataclass(frozen=True)
class Plugin:
    """A setting whose value is a class with arguments, ``{class_path, init_args}``.

    Attributes:
        base: What the class must be derived from.
        given: Leading constructor arguments that the run gives and the settings do not.
        factory: Whether it is built later, so that a function which builds it fits too.
    """

    base: type
    given: int = 0
    factory: bool = False

    @property
    def home(self) -> str:
        """The package whose classes need no module path."""
        return HOMES.get(self.base, self.base.__module__)

    def classes(self) -> dict[str, type]:
        """Return the classes that need no module path, by name."""
        package = import_module(self.home)
        if self.home.startswith("flsel.") and hasattr(package, "__path__"):
            # All public modules, so that a class in a new file is found.
            for module in pkgutil.iter_modules(package.__path__):
                if not module.name.startswith("_"):
                    import_module(f"{self.home}.{module.name}")
        # Lightning's class itself, in the place of what stands for it in a declaration.
        base = getattr(package, self.base.__name__, self.base)
        found = sorted(_concrete(base), key=lambda made: made.__name__)
        return {made.__name__: made for made in found if f"{made.__module__}.".startswith(f"{self.home}.")}

    def find(self, key: str, name: Any) -> Any:
        """Return the class, or the function, that a name or an import path stands for.

        Raises:
            UserError: If there is none, or it does not fit; it begins with ``key``.
        """
        offered = self._offered(name)
        if offered is not None:
            return offered
        known = {} if isinstance(name, str) and "." in name else self.classes()
        if not isinstance(name, str) or ("." not in name and name not in known):
            close = closest(name, known)
            if close:
                raise UserError(f"{key} has no class {name}; did you mean {close}? (--{key}.help lists them)")
            raise UserError(f"{key} must be {self.rule()}, got {shown(name)}.")
        if name in known:
            return known[name]
        made = imported(key, name)
        if self.factory and callable(made) and not inspect.isclass(made):
            if not hasattr(made, "__qualname__"):
                raise UserError(
                    f"{key} must be a class or a function, and {name} is a {type(made).__name__}."
                )
            return made
        if not (inspect.isclass(made) and issubclass(made, self.base)):
            raise UserError(f"{key} must be derived from {self.base.__name__}, and {name} is not.")
        if inspect.isabstract(made):
            lacks = ", ".join(sorted(getattr(made, "__abstractmethods__", ())))
            raise UserError(f"{key} cannot be {name}, which does not define {lacks}.")
        return made

    def _offered(self, name: Any) -> type | None:
        """Return the class that the package offers by a name, without importing all of them."""
        if not isinstance(name, str) or name.startswith("_"):
            return None
        made = getattr(import_module(self.home), name, None)
        fits = inspect.isclass(made) and issubclass(made, self.base) and not inspect.isabstract(made)
        return made if fits and made is not self.base else None

    def rule(self) -> str:
        """Name the classes that fit, in words."""
        ours = self.home.startswith("flsel.")
        listed = f"one of {', '.join(self.classes())}" if ours else f"a class of {self.home}"
        return f"{listed}, or the import path of another {self.base.__name__}"


@functools.cache
def keys() -> Mapping[str, Argument]:
    """Return every setting by its dotted key; groups of settings are left out."""
    return keys_of(RunConfig)


def keys_of(made: type, above: str = "") -> dict[str, Argument]:
    """Return the settings that a dataclass declares, by dotted key."""
    found = dict[str, Argument]()
    for name, argument in arguments(made).items():
        inner = is_dataclass(argument.hint)
        found |= keys_of(argument.hint, f"{above}{name}.") if inner else {f"{above}{name}": argument}
    return found


@functools.cache
def groups() -> frozenset[str]:
    """Return the dotted keys of the groups of settings, such as ``data`` and ``data.synthetic``."""
    return frozenset(key[:at] for key in keys() for at, letter in enumerate(key) if letter == ".")


@functools.cache
def plugins() -> Mapping[str, Plugin]:
    """Return the settings whose value is one class, by dotted key."""
    found = {key: plugin(argument.hint) for key, argument in keys().items()}
    return {key: asked for key, asked in found.items() if asked is not None}


@functools.cache
def defaults() -> Mapping[str, Any]:
    """Return the default of every setting that is a class, as a YAML file holds it."""
    described = describe(RunConfig())
    return {key: functools.reduce(dict.__getitem__, key.split("."), described) for key in plugins()}


def plugin(hint: Any) -> Plugin | None:
    """Return what class a type asks for, or None if it asks for a plain value."""
    for part in alternatives(hint):
        if get_origin(part) is Callable:
            given, made = get_args(part)
            return Plugin(made, len(given), factory=True)
        if inspect.isclass(part) and any(issubclass(part, base) for base in HOMES):
            return Plugin(part)
    return None


def items(hint: Any) -> Plugin | None:
    """Return what class a list type asks for in each of its items, or None if it is no such list."""
    return plugin(get_args(hint)[0]) if get_origin(hint) in (tuple, list) else None


def rule(argument: Argument) -> str:
    """Say which values a setting takes, in words."""
    asked, each = plugin(argument.hint), items(argument.hint)
    if asked is not None:
        return asked.rule() + (" or null" if type(None) in alternatives(argument.hint) else "")
    return argument.rule() if each is None else f"a list, each item {each.rule()}"


def typed(key: str, argument: Argument, value: Any) -> Any:
    """Give a value the type that is declared for it.

    Raises:
        UserError: If it is of another.
    """
    # An argument without a type whose default is a class or a function is read as an import path.
    named = argument.hint is Any and callable(argument.default)
    try:
        found = _parser(type | Callable | Any if named else argument.hint).parse_object(
            {"value": value}, defaults=False
        )
        return found.as_dict()["value"]
    except (ArgumentError, ValueError, RecursionError) as error:
        raise mismatch(key, argument, loaded(value)) from error


def mismatch(key: str, argument: Argument, value: Any) -> UserError:
    """Return the error that says that a value is not what a setting takes."""
    allowed = rule(argument)
    if "text" in allowed and isinstance(value, int | float):
        return UserError(f"{key} must be {allowed}, got {shown(value)}; write it in quotes.")
    names = allowed.removeprefix("one of ").split(", ") if "one of " in allowed else ()
    return UserError(f"{key} must be {allowed}, got {shown(value)}{meant(value, names)}")


def _parser(hint: Any) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    try:
        parser.add_argument("--value", type=hint)
    except ValueError:  # a type that only its own module knows
        parser.add_argument("--value", type=Any)
    return parser


def _concrete(base: type) -> Iterator[type]:
    made: type
    for made in base.__subclasses__():
        if not inspect.isabstract(made) and not made.__name__.startswith("_"):
            yield made
        yield from _concrete(made)
