"""Notes of values, by which they are put back: of numbers, tensors, containers, objects, functions, classes.

A note tells whether a value is still what it was (``same``) and makes it so again (``back``).
"""

from __future__ import annotations

import copy
import functools
import io
import threading
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flsel.local.code_state import cells_of, class_attributes, globals_of, is_library, package_of, slots_of
from flsel.local.memo_containers import COPIED, PLAIN, ContainerParts, Copied, IteratorCopy, Listed, refill
from flsel.local.torch_internals import writes_to

_AS_THEY_ARE = (*PLAIN, types.ModuleType, types.BuiltinFunctionType)
# Objects of libraries that count or collect something.
_COUNTING = ("torch.optim", "torch.quasirandom", "queue", "weakref", "_weakrefset", "types")
_LONGEST = 256  # Members of a container; those of a longer one are not looked into.
_LARGEST = 2**26  # Bytes of an array or a tensor; a larger one is taken for data that the model only reads.
_DEEPEST = 40  # Values within values.


class Memo(Protocol):
    """The note of a value."""

    def same(self, now: Any) -> bool:
        """Tell whether a value is the one that was noted, and holds what it held."""

    def back(self) -> Any:
        """Return the value that was noted, holding what it held."""


@final
class Memos:
    """Notes values; what was met before is noted there.

    Args:
        tree: Notes a module that is no part of the one that is looked at.
        own: Packages whose objects are looked into, though they were installed.
        shared: Where classes, and the global names that a function uses, are put in place of being noted.

    Attributes:
        seen: Ids of what was met.
        tensors: Those that were met.
        globals: Global names that functions use, if they are noted.
    """

    def __init__(
        self, tree: Callable[[nn.Module, Memos], Memo], own: Collection[str], shared: list[Any] | None = None
    ) -> None:
        self.seen: set[int] = set()
        self._tree, self._own, self._shared = tree, own, shared
        self.tensors: list[Tensor] = []
        self.globals: list[Names] = []
        self._depth = 0
        self._alive: list[Any] = []  # an id is a value's as long as the value lives

    def meet(self, value: Any) -> bool:
        """Note that a value is looked at; tell whether it is new."""
        new = id(value) not in self.seen
        if new:
            self.seen.add(id(value))
            self._alive.append(value)
        return new

    def __call__(self, value: Any) -> Memo:
        """Note a value."""
        if isinstance(value, _AS_THEY_ARE) or self._depth > _DEEPEST or not self.meet(value):
            return Value(value)
        self._depth += 1
        try:
            return self._noted(value)
        finally:
            self._depth -= 1

    def _noted(self, value: Any) -> Memo:
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return Value(value)
        if isinstance(value, nn.Module):
            return self._tree(value, self)
        for kind, read, write in COPIED:
            if isinstance(value, kind):
                large = isinstance(value, np.ndarray) and value.nbytes > _LARGEST
                return Value(value) if large else Copied(value, read, write)
        if isinstance(value, (list, deque, dict)):
            if len(value) > _LONGEST:
                return Copied(value, copy.copy, refill)
            return Names(value, value, self) if isinstance(value, dict) else Listed(value, self)
        if isinstance(value, tuple):
            return ContainerParts(value, self)
        if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            return IteratorCopy(value)
        return self._object(value)

    def _object(self, value: Any) -> Memo:
        """Note what an object holds, what a function closes over and reads, a class's attributes."""
        if isinstance(value, types.MethodType):
            return _Whole(value, [value.__self__, value.__func__], [], self)
        if isinstance(value, functools.partial):
            return _Whole(value, [value.func, value.args, value.keywords], [], self)
        cached = "__wrapped__" in getattr(value, "__dict__", ()) and not isinstance(value, types.FunctionType)
        if cached or isinstance(value, (staticmethod, classmethod)):
            return _Whole(value, [value.__wrapped__], [], self)
        if isinstance(value, property):
            return _Whole(value, [value.fget, value.fset], [], self)
        if isinstance(value, (Optimizer, threading.local)):
            return _Whole(value, [type(value)], [vars(value)], self)
        known = isinstance(value, (type, types.FunctionType))
        made = value if known else type(value)
        if self._is_library(made) and (known or not made.__module__.startswith(_COUNTING)):
            return Value(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        own = vars(value) if hasattr(value, "__dict__") else {}
        return _Whole(value, [made], [slots_of(value), own], self)

    def _class(self, value: type) -> Memo:
        if self._shared is None:
            return _Whole(value, list(value.__bases__), [class_attributes(value)], self)
        self._shared.append(value)
        self.seen.discard(id(value))
        return Value(value)

    def _function(self, value: types.FunctionType) -> Memo:
        members, within = [cells_of(value)], [value.__defaults__, value.__kwdefaults__, value.__dict__]
        if self._shared is None:
            members.append(globals_of(value))
        else:
            self._shared.append(globals_of(value))
        whole = _Whole(value, within, members, self)
        if self._shared is None:
            self.globals.append(whole.members[-1])
        return whole

    def _is_library(self, made: Any) -> bool:
        package = package_of(made)
        return is_library(package) and (package not in self._own)


@final
class Value:
    """A tensor with a copy of what it holds, or what is compared as it is."""

    def __init__(self, value: Any) -> None:
        self._value = value
        writable = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        copied = writable and not value.is_inference() and value.numel() * value.element_size() <= _LARGEST
        self._copy = value.detach().clone() if copied else None
        self._mark: object = 0 if self._copy is None else writes_to(value)

    def same(self, now: Any) -> bool:
        """See :class:`Memo`."""
        if now is self._value:
            # If other code put it back, it has another version.
            return self._copy is None or writes_to(now) == self._mark or equal(now, self._copy)
        return type(now) is type(self._value) and isinstance(now, PLAIN) and bool(now == self._value)

    def back(self) -> Any:
        """See :class:`Memo`."""
        if self._copy is not None and writes_to(self._value) != self._mark:
            self._value.detach().copy_(self._copy)
            self._mark = writes_to(self._value)
        return self._value


@final
class Names:
    """A dictionary, or an object by its attributes.

    Args:
        value: The dictionary or the object.
        names: Its members by name; what is written there is written to the value.
        memos: Notes the members.
        skip: Names that are left alone.
    """

    def __init__(
        self, value: Any, names: MutableMapping[Any, Any], memos: Memos, skip: Collection[str] = ()
    ) -> None:
        self._value, self._names, self._skip = value, names, skip
        self._memos = {name: memos(value) for name, value in names.items() if name not in skip}

    def same(self, now: Any) -> bool:
        """See :class:`Memo`."""
        return now is self._value and self.unchanged()

    def unchanged(self) -> bool:
        """Tell whether all members are there, as they were, and no others."""
        own = [name for name in self._names if name not in self._skip]
        return len(own) == len(self._memos) and all(
            name in self._memos and self._memos[name].same(self._names[name]) for name in own
        )

    def collected(self) -> list[str]:
        """Name the lists, queues and tables whose members are not what they were."""
        return [
            str(name)
            for name, memo in self._memos.items()
            if isinstance(value := self._names.get(name), (list, deque, dict)) and not memo.same(value)
        ]

    def back(self) -> Any:
        """See :class:`Memo`."""
        for name in [n for n in self._names if n not in self._memos and n not in self._skip]:
            del self._names[name]
        for name, memo in self._memos.items():
            value = memo.back()
            if name not in self._names or self._names[name] is not value:
                self._names[name] = value
        return self._value


class _Whole:
    """An object by the values that belong to it, and by members that may become others."""

    def __init__(
        self, value: Any, within: list[Any], members: Sequence[MutableMapping[str, Any]], memos: Memos
    ) -> None:
        self._value = value
        self._within = [(part, memos(part)) for part in within if part is not None]
        self.members = [Names(value, names, memos) for names in members]

    def same(self, now: Any) -> bool:
        if now is not self._value or not all(names.unchanged() for names in self.members):
            return False
        return all(memo.same(part) for part, memo in self._within)

    def back(self) -> Any:
        for note in (*(memo for _, memo in self._within), *self.members):
            note.back()
        return self._value


def equal(one: Tensor, other: Tensor) -> bool:
    """Compare tensors; NaN equals itself, as bits do."""
    return torch.equal(one, other) or torch.equal(one.detach().nan_to_num(), other.nan_to_num())
