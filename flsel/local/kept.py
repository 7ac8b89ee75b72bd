"""What a module keeps from one call to the next beside what is sent: counters, running values, caches.

A visit is to depend on nothing that another one, or an evaluation, left behind; so all of it is put back.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_PLAIN = (bool, int, float, complex, str, bytes)
# Attributes that every module has: torch's own bookkeeping.
_TORCHS = frozenset(vars(nn.Module()))
_LIBRARIES = {"torch", "lightning", "lightning_utilities", "numpy", "flsel", *sys.stdlib_module_names}
_LONGEST = 256  # Members of a container; a longer one is a table that nobody writes to.


@final
class Kept:
    """What a module keeps beside its parameters, as it is when this is made.

    These are buffers, and attributes of the module and its layers: numbers, texts, tensors, containers of
    them, and what objects of one's own hold of these.

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
            (layer._buffers, name, buffer, None if id(buffer) in self._sent else _Value(buffer))
            for layer in layers
            for name, buffer in layer._buffers.items()
            if buffer is not None
        ]
        self._attributes = [_Names(layer, vars(layer), seen, _TORCHS | _made(layer)) for layer in layers]

    def changed(self) -> bool:
        """Tell whether something is not what it was; values of what is sent do not count."""
        buffers = (
            names.get(name) is not buffer or (value is not None and not value.same(buffer))
            for names, name, buffer, value in self._buffers
        )
        return any(buffers) or not all(own.unchanged() for own in self._attributes)

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
        for own in self._attributes:
            own.back()


def _made(layer: nn.Module) -> set[str]:
    """Name what torch's hooks make anew in every call: weights of ``nn.utils.weight_norm``, pruned ones."""
    hooks = [h for h in layer._forward_pre_hooks.values() if type(h).__module__.startswith("torch.nn.utils.")]
    return {getattr(hook, name) for hook in hooks for name in ("name", "_tensor_name") if hasattr(hook, name)}


class _Value:
    """A tensor with a copy of what it holds, or what is compared as it is."""

    def __init__(self, value: Any) -> None:
        self._value = value
        writable = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        self._copy = value.detach().clone() if writable and not value.is_inference() else None
        self._version = 0 if self._copy is None else value._version

    def same(self, now: Any) -> bool:
        if now is self._value:
            # Put back by somebody else, it has another version.
            return self._copy is None or now._version == self._version or torch.equal(now, self._copy)
        return type(now) is type(self._value) and isinstance(now, _PLAIN) and bool(now == self._value)

    def back(self) -> Any:
        if self._copy is not None and self._value._version != self._version:
            self._value.detach().copy_(self._copy)
            self._version = self._value._version
        return self._value


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
    if isinstance(value, (list, deque, dict)):
        if len(value) > _LONGEST:
            return _Value(value)
        seen.add(id(value))
        return _Names(value, value, seen) if isinstance(value, dict) else _Members(value, seen)
    if type(value).__module__.partition(".")[0] in _LIBRARIES or not hasattr(value, "__dict__"):
        return _Value(value)
    seen.add(id(value))
    return _Names(value, vars(value), seen)
