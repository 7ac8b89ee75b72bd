"""A class with arguments as plain values, until it is built."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, is_dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from torch import nn

from flsel.arguments import Checked, arguments, check_arguments, shown
from flsel.arguments.class_paths import bases_of, callable_at, check_made
from flsel.arguments.declared import with_paths
from flsel.errors import UserError, users_code


@dataclass(frozen=True)
class Spec:
    """A class or function with arguments, as ``{class_path, init_args}`` in a YAML file.

    Attributes:
        class_path: Its import path.
        init_args: Its arguments by name; one may be such a mapping itself.
        key: The setting that it is, for messages.
        bases: What it must be derived from, or return, one of them; empty for a function given from Python.
    """

    class_path: str
    init_args: Mapping[str, Any] = field(default_factory=dict)
    key: str = field(default="", compare=False)
    bases: tuple[type, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def of(cls, value: Any, key: str, *bases: type) -> Spec:
        """Describe a class or a function, also with arguments (``partial``), or an object that keeps its own.

        Raises:
            UserError: If it has no import path, or the object does not keep an argument under its name.
        """
        if isinstance(value, Spec):
            return replace(value, key=key, bases=bases or value.bases)
        if isinstance(value, partial):
            signature = inspect.signature(value.func)
            given = dict(signature.bind_partial(*value.args, **value.keywords).arguments)
            for name, parameter in signature.parameters.items():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    given |= given.pop(name, {})
            return cls(_path(value.func, key), given, key, bases)
        if not isinstance(value, Checked):
            if _importable(value):
                return cls(_path(value, key), {}, key, bases)
            raise UserError(f"{key} must be a class or a function that can be imported, got {shown(value)}.")
        made: Any = type(value)
        for name in arguments(made):
            if not hasattr(value, name):
                raise UserError(f"{key} {made.__name__} must keep its argument {name} under that name.")
        return cls(_path(made, key), {name: getattr(value, name) for name in arguments(made)}, key)

    @property
    def made(self) -> Callable[..., Any]:
        """The class or function itself.

        Raises:
            UserError: If it cannot be imported, or is nothing that settings may call.
        """
        return callable_at(self.key, self.class_path, *self.bases)

    def build(self, *given: Any, **known: Any) -> Any:
        """Call it.

        Args:
            given: Leading arguments that the run gives.
            known: Further arguments, besides ``init_args``.

        Raises:
            UserError: Whatever goes wrong, with the setting's key.
        """
        made, taken = self.made, self._arguments() | known
        try:
            what = f"{self.key} {self.class_path.rpartition('.')[2]} cannot be built"
            with users_code(what):
                check_arguments(made, taken)
                taken = with_paths(made, taken)
                self._check_functions(taken)
            # A call that does not fit, or an `__init__` that returns something, fails before the user's code.
            with users_code(what, reads=not self.class_path.startswith("flsel.")):
                found = made(*given, **taken)
        except UserError as error:
            named = str(error).partition(" ")[0] in taken
            raise (UserError(f"{self.key}.{error}") if named else error) from error.__cause__
        check_made(self.key, self.class_path, found, *self.bases)
        return found

    def _check_functions(self, taken: Mapping[str, Any]) -> None:
        """Refuse texts and numbers as arguments that are declared as functions only."""
        made = vars(self.made).get("__init__", self.made) if isinstance(self.made, type) else self.made
        # As text, since torch's schedulers import what they are annotated with for type checkers only.
        hints = {name: str(hint) for name, hint in getattr(made, "__annotations__", {}).items()}
        for name, value in taken.items():
            declared = re.findall(r"\w+", hints.get(name, ""))
            if "Callable" in declared and "str" not in declared and isinstance(value, str | int | float):
                raise UserError(
                    f"{name} must be a function, which settings cannot hold, got {shown(value)}: write a "
                    "class of your own that is built without it, or give functools.partial from Python."
                )

    __call__ = build

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments, with what is described in them built."""
        declared = arguments(self.made)
        hints = {name: declared[name].hint if name in declared else Any for name in self.init_args}
        return {name: _built(f"{self.key}.{name}", it, hints[name]) for name, it in self.init_args.items()}

    def plain(self) -> Any:
        """Return what a YAML file holds: ``{class_path, init_args}``, or a function's path alone.

        Raises:
            UserError: If an argument cannot be written.
        """
        a_class = inspect.isclass(self.made)
        if not a_class and not self.init_args:
            return self.class_path
        # The parser writes out the defaults of a class; settings made in Python must look the same.
        known = arguments(self.made).values() if a_class else ()
        defaults = {argument.name: argument.default for argument in known if argument.default is not MISSING}
        written: dict[str, Any] = {}
        for name, value in (defaults | dict(self.init_args)).items():
            at = f"{self.key}.{name}"
            try:
                # An argument that is itself a class or a function is written as its import path alone.
                written[name] = _path(value, at) if _importable(value) else plain(value, at)
            except UserError:
                # A default that YAML cannot hold need not be written: the class has it.
                if value is not defaults.get(name, MISSING):
                    raise
        return {"class_path": self.class_path} | ({"init_args": written} if written else {})


def plain(value: Any, key: str) -> Any:
    """Turn a setting into what a YAML file holds.

    Raises:
        UserError: If something in it has no import path, such as a lambda.
    """
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name
    if isinstance(value, str):
        return str(value)  # a subclass, such as the name of a dataset object, is no plain text
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [plain(item, key) for item in value]
    if isinstance(value, Mapping):
        return {name: plain(item, f"{key}.{name}") for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type | Spec | Checked):
        return {name: plain(item, f"{key}.{name}") for name, item in vars(value).items()}
    return Spec.of(value, key).plain()


def _importable(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value)


def has_path(made: Any) -> bool:
    """Tell whether a class or a function is what its import path stands for.

    A lambda has no path. In a notebook the name of a class or a function may meanwhile be another one's.
    """
    if "<" in made.__qualname__:
        return False
    found: Any = sys.modules.get(made.__module__ or "")
    for name in made.__qualname__.split(".") if found is not None else ():
        found = getattr(found, name, None)
    return (found is None and made.__module__ not in sys.modules) or bool(found == made)


def _path(made: Any, key: str) -> str:
    path = f"{made.__module__}.{made.__qualname__}"
    if "<" in path:
        raise UserError(f"{key} must be importable by name, got {path}.")
    if not has_path(made):
        raise UserError(
            f"{key} must be what {path} stands for, and that is another by now: make the settings again."
        )
    return path


def _built(key: str, value: Any, hint: Any) -> Any:
    """Build what is described in an argument, of the type that is declared, or a module without one."""
    if isinstance(value, Mapping) and "class_path" in value:
        bases = bases_of(hint) or (nn.Module, Checked)
        return Spec(value["class_path"], value.get("init_args", {}), key, bases).build()
    return [_built(key, item, hint) for item in value] if isinstance(value, list) else value
