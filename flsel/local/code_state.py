"""Places where a user's code may keep state: closures, global names, attributes of classes, slots."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, final

LIBRARIES = {"torch", "lightning", "lightning_utilities", "numpy", "flsel", *sys.stdlib_module_names}
_INSTALLED = ("site-packages", "dist-packages")


def package_of(made: Any) -> str:
    """Return the name of the package in which a class or a function was made."""
    return (getattr(made, "__module__", None) or "").partition(".")[0]


@functools.cache
def is_library(package: str) -> bool:
    """Tell whether a package is Python's, one that flsel uses, or was installed."""
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return package in LIBRARIES or any(folder in file for folder in _INSTALLED)


@final
class ClassMembers(MutableMapping[str, Any]):
    """Members of something that is no dictionary, by name.

    Args:
        names: Lists those that are there.
        read, write, drop: Read, set and remove one.
    """

    def __init__(
        self,
        names: Callable[[], list[str]],
        read: Callable[[str], Any],
        write: Callable[[str, Any], object],
        drop: Callable[[str], object],
    ) -> None:
        self._names, self._read, self._write, self._drop = names, read, write, drop

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        return self._read(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._write(name, value)

    def __delitem__(self, name: str) -> None:
        self._drop(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())


def cells_of(function: types.FunctionType) -> ClassMembers:
    """Return what a function closes over; a variable without a value is not there."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def drop(name: str) -> None:
        del cells[name].cell_contents

    return ClassMembers(
        lambda: [name for name, cell in cells.items() if cell != types.CellType()],
        lambda name: cells[name].cell_contents,
        lambda name, value: setattr(cells[name], "cell_contents", value),
        drop,
    )


def globals_of(function: types.FunctionType) -> ClassMembers:
    """Return the global names that a function reads or writes, those of installed packages apart."""
    there = function.__globals__
    installed = any(folder in function.__code__.co_filename for folder in _INSTALLED)
    used = () if installed else _globals_in(function.__code__)
    return ClassMembers(
        lambda: [name for name in used if name in there],
        there.__getitem__,
        there.__setitem__,
        there.__delitem__,
    )


@functools.lru_cache(maxsize=4096)
def _globals_in(code: types.CodeType) -> tuple[str, ...]:
    names = {op.argval for op in dis.get_instructions(code) if "GLOBAL" in op.opname}
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return tuple(sorted(names.union(*map(_globals_in, inner))))


def class_attributes(made: type) -> ClassMembers:
    """Return the attributes of a class itself, Python's own apart."""
    return ClassMembers(
        lambda: [name for name in vars(made) if not name.startswith(("__", "_abc_"))],
        vars(made).__getitem__,
        lambda name, value: setattr(made, name, value),
        lambda name: delattr(made, name),
    )


def slots_of(value: Any) -> ClassMembers:
    """Return the attributes of an object that are no part of its dictionary."""
    declared = (vars(made).get("__slots__", ()) for made in type(value).__mro__)
    names = [
        name
        for slots in declared
        for name in ([slots] if isinstance(slots, str) else slots)
        if not name.startswith("__")
    ]
    return ClassMembers(
        lambda: [name for name in names if hasattr(value, name)],
        lambda name: getattr(value, name),
        lambda name, new: object.__setattr__(value, name, new),
        lambda name: object.__delattr__(value, name),
    )
