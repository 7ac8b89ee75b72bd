"""What a module keeps from one call to the next beside what is sent: counters, running values, caches.

A visit is to depend on nothing that another one, or an evaluation, left behind; so all of it is put back.
"""

from __future__ import annotations

import copy
import io
import operator
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flsel.errors import UserError
from flsel.local.torch_internals import own_buffers, remade, writes_to

_PLAIN = (bool, int, float, complex, str, bytes)
# Attributes that every module has: torch's own bookkeeping.
_TORCHS = frozenset(vars(nn.Module()))
_LIBRARIES = {"torch", "lightning", "lightning_utilities", "numpy", "flsel", *sys.stdlib_module_names}
_LONGEST = 256  # Members of a container; those of a longer one are not looked into.
_LARGEST = 2**26  # Bytes of an array; a larger one is taken for data that the model only reads.


@final
class Kept:
    """What a module keeps beside its parameters, as it is when this is made.

    These are buffers, frozen parameters, and attributes of the module and its layers: numbers, texts,
    tensors, arrays, random generators, containers of them, and what objects of one's own hold of these. An
    iterator always counts as changed, since nothing tells how far it is; each visit gets a copy of it.

    Args:
        module: The module.
        sent: Buffers that are sent: their values belong to a visit, and only the tensors are put back.
    """

    def __init__(self, module: nn.Module, sent: Collection[Tensor] = ()) -> None:
        self._module, self._sent = module, {id(value) for value in sent}
        self.renew()

    def renew(self) -> None:
        """Take what the module keeps now for what is to be put back."""
        layers, seen = list(self._module.modules()), set[int]()
        self._buffers = [
            (own_buffers(layer), name, buffer, None if id(buffer) in self._sent else _Value(buffer))
            for layer in layers
            for name, buffer in own_buffers(layer).items()
            if buffer is not None
        ]
        frozen = [p for p in self._module.parameters() if not p.requires_grad and id(p) not in self._sent]
        self._frozen = [_Frozen(param) for param in frozen]
        self._attributes = [_Names(layer, vars(layer), seen, _TORCHS | remade(layer)) for layer in layers]

    def changed(self) -> bool:
        """Tell whether something is not what it was; values of what is sent do not count."""
        buffers = (
            names.get(name) is not buffer or (value is not None and not value.same(buffer))
            for names, name, buffer, value in self._buffers
        )
        if any(buffers) or any(frozen.changed() for frozen in self._frozen):
            return True
        return not all(own.unchanged() for own in self._attributes)

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back; a buffer that is sent keeps its value and gets its tensor back."""
        for names, name, buffer, value in self._buffers:
            now = names.get(name)
            if value is not None:
                value.back()
            elif now is not None and now is not buffer:
                # As after ``self.mean = 0.9 * self.mean + ...``: others know the tensor that was there.
                buffer.copy_(now)
            names[name] = buffer
        for frozen in self._frozen:
            frozen.back()
        for own in self._attributes:
            own.back()


class _Value:
    """A tensor with a copy of what it holds, or what is compared as it is."""

    def __init__(self, value: Any) -> None:
        self._value = value
        writable = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        self._copy = value.detach().clone() if writable and not value.is_inference() else None
        self._mark: object = 0 if self._copy is None else writes_to(value)

    def same(self, now: Any) -> bool:
        if now is self._value:
            # If other code put it back, it has another version.
            return self._copy is None or writes_to(now) == self._mark or torch.equal(now, self._copy)
        return type(now) is type(self._value) and isinstance(now, _PLAIN) and bool(now == self._value)

    def back(self) -> Any:
        if self._copy is not None and writes_to(self._value) != self._mark:
            self._value.detach().copy_(self._copy)
            self._mark = writes_to(self._value)
        return self._value


class _Frozen:
    """A parameter that is not trained, with a copy: a teacher that follows is written to by ``data``."""

    def __init__(self, param: Tensor) -> None:
        self._param, self._copy = param, param.detach().clone()

    def changed(self) -> bool:
        return not _equal(self._param, self._copy)

    def back(self) -> None:
        if self.changed():
            self._param.copy_(self._copy)


class _Copied:
    """What is put back by writing a copy into it: an array, a set, a long list or table, a generator."""

    def __init__(self, value: Any, read: Callable[[Any], Any], write: Callable[[Any, Any], object]) -> None:
        self._value, self._read, self._write = value, read, write
        self._copy = read(value)

    def same(self, now: Any) -> bool:
        return now is self._value and _alike(self._read(now), self._copy)

    def back(self) -> Any:
        if not _alike(self._read(self._value), self._copy):
            self._write(self._value, self._copy)
        return self._value


class _Iterator:
    """An iterator as it was, if it can be copied."""

    def __init__(self, value: Any) -> None:
        self._spare = value
        try:
            self._spare = self.back()
        except TypeError:
            raise UserError(
                f"a model must not keep a {type(value).__name__} in an attribute, which cannot begin anew "
                "for each client: make it in training_step or forward."
            ) from None

    def same(self, now: Any) -> bool:
        return False

    def back(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.14 makes no such copies
            return _anew(self._spare)


def _anew(iterator: Iterator[Any]) -> Any:
    """Copy an iterator with those that it reads: a plain copy of Python's own shares them."""
    if type(iterator).__module__ not in ("builtins", "itertools") or hasattr(iterator, "__copy__"):
        return copy.copy(iterator)
    made: Any = iterator.__reduce__()
    make, read, *state = made
    copied = make(*(_anew(value) if isinstance(value, Iterator) else value for value in read))
    if state and state[0] is not None:
        kept = state[0]
        # What a cycle has seen so far is a list that it goes on filling.
        if isinstance(kept, tuple):
            kept = tuple(list(value) if isinstance(value, list) else value for value in kept)
        copied.__setstate__(kept)
    return copied


class _Names:
    """A dictionary, or an object by its attributes."""

    def __init__(self, value: Any, names: dict[Any, Any], seen: set[int], skip: Collection[str] = ()) -> None:
        self._value, self._names, self._skip = value, names, skip
        self._memos = {name: _memo(value, seen) for name, value in names.items() if name not in skip}

    def same(self, now: Any) -> bool:
        return now is self._value and self.unchanged()

    def unchanged(self) -> bool:
        own = [name for name in self._names if name not in self._skip]
        return len(own) == len(self._memos) and all(
            name in self._memos and self._memos[name].same(self._names[name]) for name in own
        )

    def back(self) -> Any:
        for name in [n for n in self._names if n not in self._memos and n not in self._skip]:
            del self._names[name]
        for name, memo in self._memos.items():
            value = memo.back()
            if name not in self._names or self._names[name] is not value:
                self._names[name] = value
        return self._value


class _Members:
    """A list or a queue."""

    def __init__(self, value: Any, seen: set[int]) -> None:
        self._value, self._memos = value, [_memo(member, seen) for member in value]

    def same(self, now: Any) -> bool:
        if now is not self._value or len(now) != len(self._memos):
            return False
        return all(memo.same(member) for memo, member in zip(self._memos, now, strict=True))

    def back(self) -> Any:
        if not self.same(self._value):
            members = [memo.back() for memo in self._memos]
            self._value.clear()
            self._value.extend(members)
        return self._value


def _memo(value: Any, seen: set[int]) -> Any:
    """Note a value, so that it can be put back; what was met before is noted there."""
    if id(value) in seen or isinstance(value, (*_PLAIN, Tensor, nn.Module, Optimizer, type)):
        return _Value(value)
    seen.add(id(value))
    for kind, read, write in _COPIED:
        if isinstance(value, kind):
            large = isinstance(value, np.ndarray) and value.nbytes > _LARGEST
            return _Value(value) if large else _Copied(value, read, write)
    if isinstance(value, (list, deque, dict)):
        if len(value) > _LONGEST:
            return _Copied(value, copy.copy, _refill)
        return _Names(value, value, seen) if isinstance(value, dict) else _Members(value, seen)
    if isinstance(value, tuple):
        return _Parts(value, seen)
    if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
        return _Iterator(value)
    library = type(value).__module__.partition(".")[0] in _LIBRARIES and type(value) is not SimpleNamespace
    if library or not hasattr(value, "__dict__"):
        return _Value(value)
    return _Names(value, vars(value), seen)


class _Parts:
    """A tuple, whose members may be written to."""

    def __init__(self, value: tuple[Any, ...], seen: set[int]) -> None:
        self._value, self._memos = value, [_memo(member, seen) for member in value]

    def same(self, now: Any) -> bool:
        if type(now) is not type(self._value) or len(now) != len(self._memos):
            return False
        return all(memo.same(member) for memo, member in zip(self._memos, now, strict=True))

    def back(self) -> Any:
        for memo in self._memos:
            memo.back()
        return self._value


def _refill(value: Any, members: Any) -> None:
    value.clear()
    (value.extend if isinstance(value, (list, deque)) else value.update)(members)


def _write_array(array: np.ndarray, content: np.ndarray) -> None:
    array[...] = content


def _set_numpy(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


def _equal(one: Tensor, other: Tensor) -> bool:
    """Compare tensors; NaN equals itself, as bits do."""
    return torch.equal(one, other) or torch.equal(one.detach().nan_to_num(), other.nan_to_num())


def _alike(one: Any, other: Any) -> bool:
    """Compare what was read, members of long lists by identity."""
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype) and one.tobytes() == other.tobytes()
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, deque)):
        return len(one) == len(other) and all(map(operator.is_, one, other))
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return False
        return all(_alike(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one is other or (isinstance(one, (*_PLAIN, set)) and bool(one == other))


_COPIED: tuple[tuple[type, Callable[[Any], Any], Callable[[Any, Any], object]], ...] = (
    (np.ndarray, np.copy, _write_array),
    (set, set, _refill),
    (random.Random, random.Random.getstate, random.Random.setstate),
    (np.random.Generator, lambda g: copy.deepcopy(g.bit_generator.state), _set_numpy),
    (np.random.RandomState, np.random.RandomState.get_state, np.random.RandomState.set_state),
    (torch.Generator, torch.Generator.get_state, torch.Generator.set_state),
)
