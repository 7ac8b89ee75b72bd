"""Classes that a type asks for, and the class that a name stands for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeGuard, get_args, get_origin

from flsel.arguments import Argument, Checked, alternatives, shown
from flsel.arguments.class_paths import callable_at, refuse_standard
from flsel.errors import UserError, closest, imported

# Where the classes live that can be named without a module path, by what they are derived from.
HOMES: Mapping[str, str] = {
    "Selector": "flsel.selectors",
    "Partition": "flsel.partition",
    "Availability": "flsel.availability",
    "Completeness": "flsel.local.completeness",
    "Devices": "flsel.devices",
    "Objective": "flsel.objectives",
    "UpdateStep": "flsel.updates",
    "Aggregate": "flsel.updates",
    "Module": "flsel.models",
    "Optimizer": "torch.optim",
    "LRScheduler": "torch.optim.lr_scheduler",
    "Callback": "lightning.pytorch.callbacks",
    "Metric": "torchmetrics.classification",
    "Loss": "torch.nn.modules.loss",
    "Transform": "torchvision.transforms.v2",
}


def class_and_arguments(key: str, value: Any, default: Any = None) -> tuple[Any, Mapping[str, Any]]:
    """Return the name and the arguments of a class, given as ``{class_path, init_args}`` or by its name.

    Args:
        key: The setting, for messages.
        value: What is given.
        default: The name where only arguments are given.

    Raises:
        UserError: If it has other keys, or arguments without names.
    """
    if not isinstance(value, Mapping):
        return value, {}
    for odd in (name for name in value if name not in ("class_path", "init_args")):
        right = "{class_path: NAME, init_args: {ARGUMENT: VALUE}}"
        raise UserError(f"{key}.{odd} is misplaced: write {key}: {right}.")
    given = value.get("init_args") or {}
    if not isinstance(given, Mapping):
        raise UserError(f"{key}.init_args must be a mapping of arguments, got {shown(given)}.")
    return value.get("class_path", default), given


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
        return HOMES.get(self.base.__name__, self.base.__module__)

    def classes(self) -> dict[str, type]:
        """Return the classes that need no module path, by name."""
        package = import_module(self.home)
        # A package that imports its modules when they are asked for lists them only.
        names = {*dir(package), *getattr(package, "__all__", ())}
        found = {name: self._offered(name) for name in sorted(names)}
        return {name: made for name, made in found.items() if made is not None}

    def find(self, key: str, name: Any) -> Any:
        """Return the class, or the function, that a name or an import path stands for.

        Raises:
            UserError: If there is none, or it does not fit; it begins with ``key``.
        """
        if not isinstance(name, str):
            raise UserError(f"{key} must be {self.rule()}, got {shown(name)}.")
        offered = self._offered(name)
        if offered is not None:
            return offered
        if "." not in name:
            if name in (published := self.published()):
                return self._installed(key, name, published[name])
            close = closest(name, [*self.classes(), *published])
            if close:
                asked = f"--{key.partition('[')[0]}.help"
                raise UserError(f"{key} has no class {name}; did you mean {close}? ({asked} lists them)")
            raise UserError(f"{key} must be {self.rule()}, got {shown(name)}.")
        refuse_standard(key, name)
        made = imported(key, name)
        if self.factory and callable(made) and not inspect.isclass(made):
            return callable_at(key, name, self.base)
        if not _derived(made, self.base):
            raise UserError(f"{key} must be derived from {self.base.__name__}, and {name} is not.")
        if inspect.isabstract(made):
            lacks = ", ".join(sorted(getattr(made, "__abstractmethods__", ())))
            raise UserError(f"{key} cannot be {name}, which does not define {lacks}.")
        return made

    @property
    def group(self) -> str:
        """The group of entry points in which packages offer classes, such as ``flsel.selectors``."""
        return self.home if self.home.startswith("flsel.") else f"flsel.{self.base.__name__.lower()}s"

    def published(self) -> dict[str, list[EntryPoint]]:
        """Return what installed packages offer, by name; nothing of it is imported.

        A name of flsel's own is not among them, so that no package changes what a file of settings means.
        """
        found = dict[str, list[EntryPoint]]()
        for each in sorted(entry_points(group=self.group), key=lambda each: (each.name, each.value)):
            if self._offered(each.name) is None:
                found.setdefault(each.name, []).append(each)
        return found

    def _installed(self, key: str, name: str, found: list[EntryPoint]) -> Any:
        """Return what an installed package offers by a name.

        Raises:
            UserError: Naming the package, if it cannot be imported or does not fit, or if two offer the name.
        """
        path = f"{found[0].module}.{found[0].attr or ''}"
        packages = [each.dist.name if each.dist else each.module for each in found]
        if len({each.value for each in found}) > 1:
            raise UserError(
                f"{key} {name} is offered by the installed packages {' and '.join(packages)}: give an import "
                f"path, such as {path}."
            )
        try:
            return self.find(key, path)
        except UserError as error:
            raise UserError(
                f"{key} {name} of the installed package {packages[0]}: {error}"
            ) from error.__cause__

    def named(self, name: str) -> str:
        """Return a class's short name, or its import path if it has none; what is no class as it is."""
        try:
            made = self.find("", name)
        except UserError:
            return name
        short = made.__qualname__
        return short if self._offered(short) is made else f"{made.__module__}.{short}"

    def rule(self) -> str:
        """Name the classes that fit, in words."""
        ours = self.home.startswith("flsel.")
        names = ", ".join([*(self.classes() if ours else ()), *self.published()])
        listed = f"one of {names}" if ours else f"a class of {self.home}{names and f', {names}'}"
        return f"{listed}, or the import path of another {self.base.__name__}"

    def _offered(self, name: str) -> type | None:
        """Return the class that the package offers by a name, if it does."""
        made = getattr(import_module(self.home), name, None)
        if name.startswith("_") or not _derived(made, self.base):
            return None
        # Not the base itself, nor Lightning's class in the place of what stands for it in a declaration.
        offered = made.__name__ != self.base.__name__ and f"{made.__module__}.".startswith(f"{self.home}.")
        return made if offered and not inspect.isabstract(made) else None


def _derived(made: Any, base: type) -> TypeGuard[type]:
    """Tell whether something is a class under a base; in Python 3.10 ``list[int]`` passes for a class."""
    return get_origin(made) is None and inspect.isclass(made) and issubclass(made, base)


def plugin(hint: Any) -> Plugin | None:
    """Return what class a type asks for, or None if it asks for a plain value."""
    for part in alternatives(hint):
        if get_origin(part) is Callable and get_args(part):
            given, made = get_args(part)
            return Plugin(made, len(given) if isinstance(given, list) else 0, factory=True)
        if _derived(part, Checked):
            return Plugin(part)
    return None


def items(hint: Any) -> Plugin | None:
    """Return what class a list type asks for in each of its items, or None if it is no such list."""
    return plugin(get_args(hint)[0]) if get_origin(hint) in (tuple, list) else None


def rule(argument: Argument) -> str:
    """Say which values a setting takes, in words, classes among them."""
    asked, each = plugin(argument.hint), items(argument.hint)
    if asked is not None:
        return asked.rule() + (" or null" if type(None) in alternatives(argument.hint) else "")
    return argument.rule() if each is None else f"a list, each item {each.rule()}"
