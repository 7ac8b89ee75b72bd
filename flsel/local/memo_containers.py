"""Notes of containers, arrays, generators and iterators (:mod:`flsel.local.memos`)."""

from __future__ import annotations

import array
import copy
import operator
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.errors import UserError

PLAIN = (bool, int, float, complex, str, bytes)
Note = Callable[[Any], Any]
"""Notes a member: :class:`flsel.local.memos.Memos`."""


class Copied:
    """Containers restored by writing a copy into them: arrays, sets, long lists or tables, generators."""

    def __init__(self, value: Any, read: Callable[[Any], Any], write: Callable[[Any, Any], object]) -> None:
        self._value, self._read, self._write = value, read, write
        self._copy = read(value)

    def same(self, now: Any) -> bool:
        """See :class:`flsel.local.memos.Memo`."""
        return now is self._value and _alike(self._read(now), self._copy)

    def back(self) -> Any:
        """See :class:`flsel.local.memos.Memo`."""
        if not _alike(self._read(self._value), self._copy):
            self._write(self._value, self._copy)
        return self._value


class IteratorCopy:
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
        """See :class:`flsel.local.memos.Memo`."""
        return False

    def back(self) -> Any:
        """See :class:`flsel.local.memos.Memo`."""
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


class Listed:
    """A list or a queue."""

    def __init__(self, value: Any, memos: Note) -> None:
        self._value, self._memos = value, [memos(member) for member in value]

    def same(self, now: Any) -> bool:
        """See :class:`flsel.local.memos.Memo`."""
        if now is not self._value or len(now) != len(self._memos):
            return False
        return all(memo.same(member) for memo, member in zip(self._memos, now, strict=True))

    def back(self) -> Any:
        """See :class:`flsel.local.memos.Memo`."""
        if not self.same(self._value):
            members = [memo.back() for memo in self._memos]
            self._value.clear()
            self._value.extend(members)
        return self._value


class ContainerParts:
    """A tuple, whose members may be written to."""

    def __init__(self, value: tuple[Any, ...], memos: Note) -> None:
        self._value, self._memos = value, [memos(member) for member in value]

    def same(self, now: Any) -> bool:
        """See :class:`flsel.local.memos.Memo`."""
        if type(now) is not type(self._value) or len(now) != len(self._memos):
            return False
        return all(memo.same(member) for memo, member in zip(self._memos, now, strict=True))

    def back(self) -> Any:
        """See :class:`flsel.local.memos.Memo`."""
        for memo in self._memos:
            memo.back()
        return self._value


def refill(value: Any, members: Any) -> None:
    """Give a container other members."""
    value.clear()
    (value.extend if isinstance(value, (list, deque)) else value.update)(members)


def _write(value: Any, content: Any) -> None:
    value[...] = content


def _write_all(value: Any, content: Any) -> None:
    value[:] = content


def _set_numpy(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


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
    return one is other or (isinstance(one, (*PLAIN, set, array.array, bytearray)) and bool(one == other))


COPIED: tuple[tuple[type, Callable[[Any], Any], Callable[[Any, Any], object]], ...] = (
    (np.ndarray, np.copy, _write),
    (set, set, refill),
    (array.array, copy.copy, _write_all),
    (bytearray, bytearray, _write_all),
    (random.Random, random.Random.getstate, random.Random.setstate),
    (np.random.Generator, lambda g: copy.deepcopy(g.bit_generator.state), _set_numpy),
    (np.random.RandomState, np.random.RandomState.get_state, np.random.RandomState.set_state),
    (torch.Generator, torch.Generator.get_state, torch.Generator.set_state),
)
