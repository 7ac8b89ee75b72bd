"""Snapshot and restore what a module keeps besides the parameters that a run trains.

A client's training is to depend on nothing that another one, or an evaluation, left in the module. So all
that ``copy.deepcopy`` reaches from it is put back in place: buffers, frozen parameters, which layers, hooks
and parameters there are, and attributes with what they hold. What it does not reach is outside of the module:
global names, attributes of classes, variables of closures. The self-check tells whether that matters.
"""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from operator import is_
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flsel.errors import UserError, say_once
from flsel.local.torch_internals import own_buffers, writes_to

_PLAIN = (bool, int, float, complex, str, bytes)
_CONTAINERS = (list, deque, set, bytearray, array)
_HOLDERS = (dict, list, tuple, deque)
# Numbers of a tensor that is always kept a copy of.
_SMALL = 2**16
_ATTRIBUTE = "a tensor in an attribute"


class Restorable(Protocol):
    """Something mutable that is reached from a module."""

    def changed(self) -> bool:
        """Tell whether the object differs from its snapshot."""

    def restore(self) -> object:
        """Restore the object itself; the objects that it refers to have snapshots of their own."""


@final
class ModuleSnapshot:
    """A snapshot of what a module keeps.

    Frozen parameters that the first local steps leave alone are neither compared nor copied later.

    Args:
        module: The module.
        sent: Buffers that are sent: their values belong to a client, and only the tensors are put back.
        model: The module inside it whose names a user knows.
    """

    def __init__(
        self, module: nn.Module, sent: Iterable[Tensor] = (), model: nn.Module | None = None
    ) -> None:
        self._module, self._sent, self._model = module, {id(value) for value in sent}, model or module
        self._numbers: dict[int, _Numbers] = {}
        self.renew()

    def renew(self) -> None:
        """Replace the snapshot by one of the module as it is."""
        module, before = self._module, self._numbers
        self._flags = [(param, param.requires_grad) for param in module.parameters()]
        named = {id(value): (name, value) for name, value in (*_named(module), *_named(self._model))}
        layers = [layer for layer in module.modules() if not isinstance(layer, torch.jit.ScriptModule)]
        own = [(vars(layer), _skipped(layer)) for layer in layers]
        self._known = [*module.modules(), *(value for _, value in named.values())]
        objects = mutable_objects(
            [v for members, skip in own for n, v in members.items() if n not in skip], self._known
        )
        spares = _iterators(objects)
        self._parts: list[Restorable] = [
            *(_Members(members, spares, skip) for members, skip in own),
            *_parts_of(objects),
        ]
        # Most of a layer's dictionaries are empty, and are looked at together.
        self._empty = [part.members for part in self._parts if isinstance(part, _Members) and not part.names]
        self._filled = [part for part in self._parts if not isinstance(part, _Members) or part.names]
        trained = {id(param) for param, flag in self._flags if flag}
        kept = [entry for key, entry in named.items() if key not in trained | self._sent]
        kept += [(_ATTRIBUTE, value) for value in _numbers_in(objects)]
        # Not what looks at a client's own numbers, such as a stored ``weight.data``.
        theirs = _spans(value for key, (_, value) in named.items() if key in trained | self._sent)
        self._numbers = {
            id(value): _Numbers(name, value, before.get(id(value)))
            for name, value in kept
            if not any(first <= _place(value) < last for first, last in theirs)
        }
        self._buffers = [
            (own_buffers(layer), name, buffer)
            for layer in layers
            for name, buffer in layer.named_buffers(recurse=False)
            if id(buffer) in self._sent
        ]

    def changed(self) -> bool:
        """Tell whether something differs from the snapshot, apart from the values of sent tensors."""
        flags = any(param.requires_grad != flag for param, flag in self._flags)
        parts: list[Restorable] = [*self._parts, *self._numbers.values()]
        return flags or any(part.changed() for part in parts)

    @torch.no_grad()
    def restore(self, *, trained: bool = False) -> None:
        """Put everything back; a buffer that is sent keeps its value and gets its tensor back.

        Args:
            trained: Local steps were taken, and what they left alone is taken for constant.

        Raises:
            UserError: If numbers were written to that the first local steps left alone.
        """
        for own, name, buffer in self._buffers:
            now = own.get(name)
            # As after ``self.mean = 0.9 * self.mean + ...``: others know the tensor that was there.
            if now is not None and now is not buffer:
                buffer.copy_(now)
                own[name] = buffer
        for part in self._parts if any(self._empty) else self._filled:
            if part.changed():
                part.restore()
        names = [numbers.name for numbers in self._numbers.values() if numbers.restore(trained) and trained]
        if names:
            self._warn(names)
        for param, flag in self._flags:
            if param.requires_grad != flag:
                param.requires_grad_(flag)

    def _warn(self, names: list[str]) -> None:
        """Say once which numbers each client begins with anew, such as those of a momentum target."""
        named = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        say_once(
            f"model {type(self._model).__name__} changes {named} in training, which is not sent: each client "
            "begins with what it was when the model was built, so a momentum target begins anew in each round"
        )

    def modes(self) -> list[bool]:
        """List which layers are in training mode."""
        return [layer.training for layer in self._module.modules()]

    def of_optimizer(self, optimizer: Optimizer) -> list[Restorable]:
        """Take a snapshot of what an optimizer keeps beside the state and the groups of its parameters."""
        skip, own = ("state", "param_groups"), vars(optimizer)
        objects = mutable_objects([own[name] for name in own if name not in skip], [optimizer, *self._known])
        numbers = [_Numbers(_ATTRIBUTE, value) for value in _numbers_in(objects)]
        return [_Members(own, _iterators(objects), skip), *_parts_of(objects), *numbers]

    def check_frozen(self, model: nn.Module) -> None:
        """Refuse a module that has begun to train a frozen parameter.

        Args:
            model: The module, or the one inside it whose names a run uses.

        Raises:
            UserError: Naming the parameter.
        """
        flags = {id(param): flag for param, flag in self._flags}
        for name, param in model.named_parameters():
            if param.requires_grad and not flags.get(id(param), True):
                raise UserError(
                    f"a model must not begin to train a frozen parameter, here {name}: what a run trains are "
                    "the parameters that require gradients when it starts. Let it require gradients from the "
                    "start, and multiply its gradient by zero as long as it is to rest."
                )


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Restore training modes, what is kept, and torch's random state, without gradients meanwhile."""
    modes = {layer: layer.training for layer in module.modules()}
    kept = ModuleSnapshot(module)
    devices = {p.device.index for p in module.parameters() if p.device.type == "cuda"}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=sorted(devices)):
            yield
    finally:
        for layer, training in modes.items():
            layer.training = training
        kept.restore()


def mutable_objects(values: list[Any], known: list[Any]) -> list[tuple[Any, Any]]:
    """List the mutable objects that ``copy.deepcopy`` reaches from some values, each with its copy.

    What cannot be copied (locks, generators) is left out; of a container of such, the other members count.

    Args:
        values: Where it begins.
        known: What is not to be looked into.
    """
    memo: dict[int, Any] = {id(value): value for value in known}
    more: list[tuple[Any, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python's iterators, which Python 3.14 does not copy
        whole = dict(memo)
        if not _try_copy(values, whole):
            left = [value for value in values if not _try_copy(value, dict(memo))]
            whole = memo | {id(value): value for value in left}
            _try_copy(values, whole)
            more = [(value, value) for value in left if isinstance(value, (Tensor, dict, list, deque))]
            within = [list(v.values() if isinstance(v, dict) else v) for v in left if isinstance(v, _HOLDERS)]
            more += (
                mutable_objects([member for members in within for member in members], [*known, *left])
                if within
                else []
            )
    # Where deepcopy keeps alive what it has copied, so that an id stays an object's.
    return [(value, whole[id(value)]) for value in whole.get(id(whole), []) if id(value) in whole] + more


def _try_copy(value: Any, memo: dict[int, Any]) -> bool:
    try:
        copy.deepcopy(value, memo)
    except Exception:  # whatever the object's own class raises
        return False
    return True


def _named(module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _skipped(layer: nn.Module) -> set[str]:
    """Name what a call computes anew, such as weights of ``weight_norm``, and the mode, which flsel sets."""
    computed = {n for n, v in vars(layer).items() if isinstance(v, Tensor) and v.grad_fn is not None}
    return {"training", *computed}


def _numbers_in(objects: list[tuple[Any, Any]]) -> list[Any]:
    """List tensors and arrays, but for what was computed from parameters."""
    numbers = [value for value, _ in objects if isinstance(value, (Tensor, np.ndarray))]
    return [value for value in numbers if isinstance(value, np.ndarray) or value.grad_fn is None]


def _place(value: Any) -> int:
    """Return where numbers lie in memory; -1 if that is not known."""
    try:
        return int(value.ctypes.data if isinstance(value, np.ndarray) else value.data_ptr())
    except RuntimeError:  # of tensors without memory of their own
        return -1


def _spans(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Return the first place of each tensor's memory, and the first after it."""
    memories = [tensor.untyped_storage() for tensor in tensors if _place(tensor) > 0]
    return [(memory.data_ptr(), memory.data_ptr() + memory.nbytes()) for memory in memories]


def _parts_of(objects: list[tuple[Any, Any]]) -> list[Restorable]:
    """Return the parts that stand for objects, but for tensors and arrays."""
    parts: list[Restorable] = []
    spares = _iterators(objects)
    for value, spare in objects:
        if isinstance(value, (Tensor, np.ndarray)) or id(value) in spares:
            continue
        if isinstance(value, dict):
            parts.append(_Members(value, spares))
        elif isinstance(value, _CONTAINERS):
            parts.append(_Listed(value, spares))
        elif hasattr(type(value), "__setstate__") and _is_compiled(value):
            parts.append(_State(value, spare))
        else:
            if hasattr(value, "__dict__"):
                parts.append(_Members(vars(value), spares))
            if any("__slots__" in vars(made) for made in type(value).__mro__):
                parts.append(_Slots(value))
    return parts


def _iterators(objects: list[tuple[Any, Any]]) -> dict[int, Any]:
    """Return copies of Python's own iterators by the iterators' ids."""
    return {id(v): spare for v, spare in objects if isinstance(v, Iterator) and not hasattr(v, "__dict__")}


def _is_compiled(value: Any) -> bool:
    """Tell whether an object keeps its state in memory of its own, as random generators do."""
    return isinstance(value, random.Random) or not hasattr(value, "__dict__")


class _Members:
    """A dictionary, or an object by its attributes.

    Args:
        members: It, by name.
        spares: Copies of iterators by their ids: nothing tells how far one is, so each visit gets a new copy.
        skip: Names that are left alone.

    Attributes:
        members: As given.
        names: What it held first.
    """

    def __init__(
        self, members: MutableMapping[Any, Any], spares: Mapping[int, Any], skip: Collection[str] = ()
    ) -> None:
        self.members, self._skip = members, skip
        self.names = list(members)
        self._kept = {name: value for name, value in members.items() if name not in skip}
        self._spares = {n: spares[id(value)] for n, value in self._kept.items() if id(value) in spares}

    def changed(self) -> bool:
        members, kept = self.members, self._kept
        if self._spares:
            return True
        same = len(members) == len(self.names) and all(map(is_, members, self.names))
        # A layer's mode differs at each evaluation, so its other attributes are looked at one by one.
        values: Iterable[Any] = map(members.__getitem__, kept) if self._skip else members.values()
        if same and all(map(is_, values, kept.values())):
            return False
        now = {name: value for name, value in members.items() if name not in self._skip}
        return not _alike(list(now), list(self._kept)) or not _alike(now.values(), self._kept.values())

    def restore(self) -> None:
        kept, members = self._kept, self.members
        for name in [name for name in members if name not in kept and name not in self._skip]:
            del members[name]
        if not all(map(is_, members, kept)) and not self._skip:
            members.clear()  # it is in another order
        for name, value in kept.items():
            if name in self._spares:
                members[name] = copy.deepcopy(self._spares[name])
            elif name not in members or members[name] is not value:
                members[name] = value


class _Slots:
    """Attributes of an object that are no part of its dictionary."""

    def __init__(self, value: Any) -> None:
        slots = [vars(made).get("__slots__", ()) for made in type(value).__mro__]
        names = [name for own in slots for name in ([own] if isinstance(own, str) else own)]
        self._value, self._names = value, [name for name in names if not name.startswith("__")]
        self._kept = self._now()

    def _now(self) -> dict[str, Any]:
        return {name: getattr(self._value, name) for name in self._names if hasattr(self._value, name)}

    def changed(self) -> bool:
        now = self._now()
        return now.keys() != self._kept.keys() or not _alike(now.values(), self._kept.values())

    def restore(self) -> None:
        for name in self._now().keys() - self._kept.keys():
            object.__delattr__(self._value, name)
        for name, value in self._kept.items():
            object.__setattr__(self._value, name, value)


class _Listed:
    """A list, a queue, a set, or an array of bytes or numbers."""

    def __init__(self, value: Any, spares: Mapping[int, Any]) -> None:
        self._value, self._kept = value, copy.copy(value)
        self._spares = {place: spares[id(v)] for place, v in enumerate(value) if id(v) in spares}

    def changed(self) -> bool:
        if isinstance(self._value, (list, deque)):
            return bool(self._spares) or not _alike(self._value, self._kept)
        return bool(self._value != self._kept)

    def restore(self) -> None:
        fresh = copy.deepcopy(self._spares)
        members = [fresh.get(place, member) for place, member in enumerate(self._kept)]
        if isinstance(self._value, (bytearray, array)):
            self._value[:] = self._kept
            return
        self._value.clear()
        (self._value.update if isinstance(self._value, set) else self._value.extend)(members)


class _State:
    """An object that takes its state back by ``__setstate__``, such as a random generator.

    Args:
        value: The object.
        spare: A copy of it.
    """

    def __init__(self, value: Any, spare: Any) -> None:
        self._value, self._spare, self._bytes = value, spare, pickle.dumps(spare)

    def changed(self) -> bool:
        return pickle.dumps(self._value) != self._bytes

    def restore(self) -> None:
        self._value.__setstate__(copy.deepcopy(self._spare).__reduce_ex__(4)[2])


class _Numbers:
    """A tensor or an array.

    Until local steps have shown whether they write to it, it is compared by its numbers; later only if they
    do, else by where it is and how often torch has written to it.

    Args:
        name: What it is called.
        value: The tensor or the array.
        before: What an earlier snapshot knew of it.
    """

    def __init__(self, name: str, value: Any, before: _Numbers | None = None) -> None:
        self.name, self._value = name, value
        self._is_weight = isinstance(value, Tensor) and value.is_floating_point() and name != _ATTRIBUTE
        self.written: bool = before is not None and before.written
        self._constant: bool = before is not None and before._constant
        self._large = (value.numel() if isinstance(value, Tensor) else value.size) > _SMALL
        self._copy = None if self._constant and self._large else _clone(value)
        self._mark = self._seen()

    def changed(self) -> bool:
        if self._constant and self._mark == self._seen():
            return False
        return self._copy is None or not equal(self._value, self._copy)

    def restore(self, trained: bool = False) -> bool:
        """Put the numbers back.

        Args:
            trained: Local steps were taken.

        Returns:
            Whether it is news that floating-point numbers of the module are written to.

        Raises:
            UserError: If they are gone.
        """
        if self.changed():
            if self._copy is None:
                raise UserError(
                    f"a model must not begin to write to {self.name} after the first client's training, "
                    "which left it alone, so that nothing is kept of what it was: write to it in each step."
                )
            new = self._is_weight and not self.written
            self.written, self._constant = True, False
            target = self._value.detach() if isinstance(self._value, Tensor) else self._value
            target[...] = self._copy
            self._mark = self._seen()
            return new
        if trained and not self.written:
            self._constant = True
            self._copy = None if self._large else self._copy
        self._mark = self._seen()
        return False

    def _seen(self) -> object:
        """Return a mark that differs once the numbers were written to in a way that torch tells of."""
        if not isinstance(self._value, Tensor) or self._value.is_inference():
            return None
        return writes_to(self._value), _place(self._value)


def _clone(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value.copy()


def equal(one: Any, other: Any) -> bool:
    """Compare tensors, or arrays; NaN equals itself, as bits do."""
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if torch.equal(one, other):
        return True
    nan = one.isnan()
    return bool(nan.any()) and one.shape == other.shape and bool((one.eq(other) | nan & other.isnan()).all())


def _alike(one: Collection[Any], other: Collection[Any]) -> bool:
    """Compare members by identity, numbers and texts by value."""
    if len(one) != len(other):
        return False
    return all(map(is_, one, other)) or all(
        a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b)
        for a, b in zip(one, other, strict=True)
    )
