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
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from operator import is_
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flsel.errors import UserError, say_once
from flsel.local.torch_internals import own_buffers, writes_to

_PLAIN = (bool, int, float, complex, str, bytes)
_HOLDERS = (dict, list, tuple, deque)
# Numbers of a tensor that is always kept a copy of.
_SMALL = 2**16
_ATTRIBUTE = "a tensor in an attribute"


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
        self._modes = [(layer, layer.training) for layer in module.modules()]
        self._flags = [(param, param.requires_grad) for param in module.parameters()]
        named = {id(value): (name, value) for name, value in (*_named(module), *_named(self._model))}
        layers = [layer for layer in module.modules() if not isinstance(layer, torch.jit.ScriptModule)]
        own = [(vars(layer), _skipped(layer)) for layer in layers]
        self._known = [*module.modules(), *(value for _, value in named.values())]
        objects = mutable_objects(
            [v for members, skip in own for n, v in members.items() if n not in skip], self._known
        )
        self._parts = [*(_members(members, skip) for members, skip in own), *_parts_of(objects)]
        # Most of a layer's dictionaries are empty, and are looked at together.
        empty = [part for part in self._parts if isinstance(part.value, dict) and not part.value]
        self._empty = [part.value for part in empty]
        self._filled = [part for part in self._parts if part not in empty]
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
            (own_buffers(layer), name, buffer, buffer.shape)
            for layer in layers
            for name, buffer in layer.named_buffers(recurse=False)
            if id(buffer) in self._sent
        ]

    def changed(self) -> bool:
        """Tell whether something differs from the snapshot, apart from the values of sent tensors."""
        flags = any(param.requires_grad != flag for param, flag in self._flags)
        modes = any(layer.training != mode for layer, mode in self._modes)
        parts: list[_Part | _Numbers] = [*self._parts, *self._numbers.values()]
        return flags or modes or any(part.changed() for part in parts)

    @torch.no_grad()
    def restore(self, *, trained: bool = False) -> None:
        """Put everything back; a buffer that is sent keeps its value and gets its tensor back.

        Args:
            trained: Local steps were taken, and what they left alone is taken for constant.

        Raises:
            UserError: If numbers were written to that the first local steps left alone, or a buffer that is
                sent has another shape.
        """
        for own, name, buffer, shape in self._buffers:
            now = own.get(name)
            if now is not None and now.shape != shape:
                raise UserError(
                    f"a model must not change the shape of a buffer in training, and {name} went from "
                    f"{[*shape]} to {[*now.shape]}: give it its full size in __init__, or keep it in an "
                    "attribute, such as a list, which each client begins with anew."
                )
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
        for layer, mode in self._modes:
            if layer.training != mode:
                layer.training = mode

    def _warn(self, names: list[str]) -> None:
        """Say once which numbers each client begins with anew, such as those of a momentum target."""
        named = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        say_once(
            f"model {type(self._model).__name__} changes {named} in training, which is not sent: each client "
            "begins with what it was when the model was built, so a momentum target begins anew in each round"
        )

    def of_optimizer(self, optimizer: Optimizer) -> list[_Part | _Numbers]:
        """Take a snapshot of what an optimizer keeps beside the state and the groups of its parameters."""
        skip, own = ("state", "param_groups"), vars(optimizer)
        objects = mutable_objects([own[name] for name in own if name not in skip], [optimizer, *self._known])
        numbers = [_Numbers(_ATTRIBUTE, value) for value in _numbers_in(objects)]
        return [_members(own, skip), *_parts_of(objects), *numbers]

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
def in_eval(module: nn.Module) -> Iterator[None]:
    """Have a module in eval mode within the block, and its layers in their own modes after it."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Restore training modes, what is kept, and torch's random state, without gradients meanwhile."""
    kept = ModuleSnapshot(module)
    devices = {p.device.index for p in module.parameters() if p.device.type == "cuda"}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=sorted(devices)):
            yield
    finally:
        kept.restore()


def mutable_objects(values: list[Any], known: list[Any]) -> list[Any]:
    """List the mutable objects that ``copy.deepcopy`` reaches from some values.

    What cannot be copied (locks, generators) is left out; of a container of such, the other members count.

    Args:
        values: Where it begins.
        known: What is not to be looked into.
    """
    memo: dict[int, Any] = {id(value): value for value in known}
    more: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python's iterators, which Python 3.14 does not copy
        whole = dict(memo)
        if not _try_copy(values, whole):
            left = [value for value in values if not _try_copy(value, dict(memo))]
            whole = memo | {id(value): value for value in left}
            _try_copy(values, whole)
            more = [value for value in left if isinstance(value, (Tensor, dict, list, deque))]
            within = [list(v.values() if isinstance(v, dict) else v) for v in left if isinstance(v, _HOLDERS)]
            members = [member for members in within for member in members]
            more += mutable_objects(members, [*known, *left]) if members else []
    # Where deepcopy keeps alive what it has copied, so that an id stays an object's.
    return [value for value in whole.get(id(whole), []) if id(value) in whole] + more


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
    """Name what a call computes anew, such as weights of ``weight_norm``, and the mode, which is apart."""
    computed = {n for n, v in vars(layer).items() if isinstance(v, Tensor) and v.grad_fn is not None}
    return {"training", *computed}


def _numbers_in(objects: list[Any]) -> list[Any]:
    """List tensors and arrays, but for what was computed from parameters."""
    numbers = [value for value in objects if isinstance(value, (Tensor, np.ndarray))]
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


def _parts_of(objects: list[Any]) -> list[_Part]:
    """Return the parts that stand for objects, but for tensors and arrays."""
    parts: list[_Part] = []
    for value in objects:
        if isinstance(value, (Tensor, np.ndarray)) or _is_iterator(value):
            continue
        if isinstance(value, dict):
            parts.append(_members(value))
        elif isinstance(value, (list, deque, set, bytearray, array)):
            parts.append(_Part(value, _write_items))
        elif hasattr(type(value), "__setstate__") and _is_compiled(value):
            parts.append(_Part(value, _write_state, pickle.dumps))
        else:
            if hasattr(value, "__dict__"):
                parts.append(_members(vars(value)))
            if any("__slots__" in vars(made) for made in type(value).__mro__):
                parts.append(_Part(value, _write_slots, _read_slots))
    return parts


def _is_iterator(value: Any) -> bool:
    """Tell whether a value is one of Python's own iterators, of which nothing tells how far they are."""
    return isinstance(value, Iterator) and not hasattr(value, "__dict__") and _try_copy(value, {})


def _is_compiled(value: Any) -> bool:
    """Tell whether an object keeps its state in memory of its own, as random generators do."""
    return isinstance(value, random.Random) or not hasattr(value, "__dict__")


class _Part:
    """A mutable object: what it held first, and what writes that again.

    Iterators that it holds are replaced by copies in each restore.

    Args:
        value: The object.
        write: Writes what it held first.
        read: Reads that; None for a container, which is compared as it is.
    """

    def __init__(
        self, value: Any, write: Callable[[Any, Any], None], read: Callable[[Any], Any] | None = None
    ) -> None:
        self.value, self._write, self._read = value, write, read
        self._names = list(value) if isinstance(value, dict) else []
        self._kept = (read or (dict if isinstance(value, dict) else copy.copy))(value)
        members = [*self._kept.values()] if isinstance(self._kept, dict) else self._kept
        self._turns = not isinstance(self._kept, bytes) and any(map(_is_iterator, members))
        self._kept = self._fresh()

    def _fresh(self) -> Any:
        """Return what the object held first, with iterators of its own."""
        if not self._turns:
            return self._kept
        if isinstance(self._kept, dict):
            return {name: _copied(value) for name, value in self._kept.items()}
        return [*map(_copied, self._kept)]

    def changed(self) -> bool:
        value, kept = self.value, self._kept
        if self._turns:
            return True
        # The usual case, at once: most of a module are dictionaries that nothing changes.
        named = (
            isinstance(value, dict) and len(value) == len(self._names) and all(map(is_, value, self._names))
        )
        if named and all(map(is_, map(value.__getitem__, kept), kept.values())):
            return False
        return not _alike(value if self._read is None else self._read(value), kept)

    def restore(self) -> None:
        self._write(self.value, self._fresh())


def _copied(value: Any) -> Any:
    return copy.deepcopy(value) if _is_iterator(value) else value


def _members(members: MutableMapping[Any, Any], skip: Collection[str] = ()) -> _Part:
    """Return the part of a dictionary, or of an object's, without the names that are left alone."""

    def read(members: MutableMapping[Any, Any]) -> dict[Any, Any]:
        return {name: value for name, value in members.items() if name not in skip}

    def write(members: MutableMapping[Any, Any], kept: dict[Any, Any]) -> None:
        left = {name: members[name] for name in skip if name in members}
        members.clear()
        members.update(left | kept)

    return _Part(members, write, read if skip else None)


def _write_items(value: Any, kept: Any) -> None:
    if isinstance(value, (deque, set)):
        value.clear()
        (value.update if isinstance(value, set) else value.extend)(kept)
    else:
        value[:] = kept


def _write_state(value: Any, kept: bytes) -> None:
    value.__setstate__(pickle.loads(kept).__reduce_ex__(4)[2])


def _read_slots(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that are no part of its dictionary."""
    slots = [vars(made).get("__slots__", ()) for made in type(value).__mro__]
    names = [name for own in slots for name in ([own] if isinstance(own, str) else own)]
    return {name: getattr(value, name) for name in names if name[:2] != "__" and hasattr(value, name)}


def _write_slots(value: Any, kept: dict[str, Any]) -> None:
    for name in _read_slots(value).keys() - kept.keys():
        object.__delattr__(value, name)
    for name, member in kept.items():
        object.__setattr__(value, name, member)


class _Numbers:
    """A tensor or an array.

    Until local steps have shown whether they write to it, it is compared by its numbers; later only if they
    do, else by where it is and how often torch has written to it. An earlier snapshot may know (``before``).
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
        """Put the numbers back; tell whether it is news that the module's own are written to.

        Raises:
            UserError: If there is no copy of them, since the first local steps (``trained``) left them alone.
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


def _alike(one: Any, other: Any) -> bool:
    """Compare members in their order, by identity, numbers and texts by value."""
    if isinstance(one, (bytes, set, bytearray, array)):
        return bool(one == other)
    if len(one) != len(other):
        return False
    if isinstance(one, dict):
        return _alike(one.keys(), other.keys()) and _alike(one.values(), other.values())
    return all(map(is_, one, other)) or all(
        a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b)
        for a, b in zip(one, other, strict=True)
    )
