"""Snapshot and restore a module's state besides its parameters: counters, running values, caches.

A visit is to depend on nothing that another one, or an evaluation, left behind; so all of it is put back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flsel.errors import UserError
from flsel.local.code_state import LIBRARIES, package_of
from flsel.local.lightning_module import say_once
from flsel.local.memos import Memos, Names, Value, equal
from flsel.local.torch_internals import bookkeeping, own_buffers, own_parameters, remade

# What a model collects it does so from the first steps on.
_LOOKS = 16
# Attributes that every module has: torch's own bookkeeping.
_TORCHS = frozenset(vars(nn.Module()))


@final
class ModuleSnapshot:
    """A snapshot of a module's state besides its parameters.

    These are buffers, frozen parameters, which layers, hooks and parameters there are and which of them
    train, and attributes of the module and its layers: numbers, texts, tensors, arrays, random generators,
    containers of them, functions, modules that are no layers, and what objects of one's own hold of these. An
    iterator always counts as changed, since nothing tells how far it is; each visit gets a copy of it.

    What the code of the module's classes shares with others, attributes of classes and global names, is as it
    is when something :meth:`begin`\\ s.

    Args:
        module: The module.
        sent: Buffers that are sent: their values belong to a visit, and only the tensors are put back.
    """

    def __init__(self, module: nn.Module, sent: Collection[Tensor] = ()) -> None:
        self._module, self._sent = module, {id(value) for value in sent}
        self._looks = _LOOKS
        self.renew()

    def renew(self) -> None:
        """Take what the module keeps now for what is to be put back."""
        layers = list(self._module.modules())
        self._packages = {package_of(type(layer)) for layer in layers} - LIBRARIES
        shared: list[Any] = [type(layer) for layer in layers]
        self._memos = Memos(_Tree, self._packages, shared)
        for param in self._module.parameters():
            if param.requires_grad or id(param) in self._sent:
                self._memos.meet(param)
        self._flags = [(param, param.requires_grad) for param in self._module.parameters()]
        self._own = _Tree(self._module, self._memos, self._sent, modes=False)
        self._places = list({id(place): place for place in shared}.values())
        self._note_shared()

    def _note_shared(self) -> None:
        memos = Memos(_Tree, self._packages)
        memos.seen |= self._memos.seen
        self._shared = [
            (place, memos(place) if isinstance(place, type) else Names(place, place, memos))
            for place in self._places
        ]
        self._globals = [*memos.globals, *(memo for _, memo in self._shared if isinstance(memo, Names))]

    def begin(self) -> None:
        """Take what the module's code shares with others as it is now."""
        if not all(memo.same(place) for place, memo in self._shared):
            self._note_shared()

    def note(self, optimizer: Optimizer) -> Names:
        """Note what an optimizer keeps beside the state and the groups of its parameters."""
        memos = Memos(_Tree, self._packages, [])
        memos.seen |= self._memos.seen
        return Names(optimizer, vars(optimizer), memos, ("state", "param_groups"))

    def changed(self) -> bool:
        """Tell whether something is not what it was; values of what is sent do not count."""
        if any(param.requires_grad != flag for param, flag in self._flags):
            return True
        return not (self._own.same(self._module) and all(memo.same(place) for place, memo in self._shared))

    def modes(self) -> list[bool]:
        """List which layers are in training mode."""
        return [layer.training for layer in self._module.modules()]

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

    def _tell_of_shared(self) -> None:
        """Say once that what a model collects in global names is emptied: somebody may want to read it."""
        if changed := sorted({name for memo in self._globals for name in memo.collected()}):
            say_once(
                f"model {type(self._module).__name__} changes the global {', '.join(changed)}, which is put "
                "back after each client: let a callback collect what is to be read later (docs/callbacks.md)"
            )

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back; a buffer that is sent keeps its value and gets its tensor back."""
        if self._looks:
            self._looks -= 1
            self._tell_of_shared()
        self._own.back()
        for param, flag in self._flags:
            if param.requires_grad != flag:
                param.requires_grad_(flag)
        for _, memo in self._shared:
            memo.back()


@final
class _Tree:
    """Modules: a module with its layers.

    Args:
        module: The module.
        memos: Notes what the layers hold.
        sent: Ids of buffers that are sent.
        modes: Put training modes back, too.
    """

    def __init__(
        self, module: nn.Module, memos: Memos, sent: Collection[int] = (), *, modes: bool = True
    ) -> None:
        self._module = module
        layers = [layer for layer in module.modules() if memos.meet(layer) or layer is module]
        self._modes = [(layer, layer.training) for layer in layers] if modes else []
        self._buffers = [
            (own_buffers(layer), name, buffer, None if id(buffer) in sent else Value(buffer))
            for layer in layers
            for name, buffer in own_buffers(layer).items()
            if buffer is not None
        ]
        self._names = [(own_buffers(layer), set(own_buffers(layer))) for layer in layers]
        own = (param for layer in layers for param in own_parameters(layer).values())
        self._frozen = [_Frozen(param) for param in own if param is not None and memos.meet(param)]
        self._members = [(part, dict(part)) for layer in layers for part in bookkeeping(layer)]
        for buffer in module.buffers():
            memos.meet(buffer)
        called = [hook for _, there in self._members for hook in there.values() if callable(hook)]
        self._hooks = [(hook, memos(hook)) for hook in called]
        self._attributes = [Names(layer, vars(layer), memos, _TORCHS | remade(layer)) for layer in layers]

    def same(self, now: Any) -> bool:
        """See :class:`flsel.local.memos.Memo`."""
        buffers = (
            names.get(name) is buffer and (value is None or value.same(buffer))
            for names, name, buffer, value in self._buffers
        )
        return (
            now is self._module
            and all(buffers)
            and all(len(names) == len(there) for names, there in self._names)
            and all(_alike(part, there) for part, there in self._members)
            and all(memo.same(hook) for hook, memo in self._hooks)
            and all(layer.training == mode for layer, mode in self._modes)
            and not any(frozen.changed() for frozen in self._frozen)
            and all(own.unchanged() for own in self._attributes)
        )

    def back(self) -> Any:
        """See :class:`flsel.local.memos.Memo`."""
        for names, there in self._names:
            for name in set(names) - there:
                del names[name]
        for names, name, buffer, value in self._buffers:
            now = names.get(name)
            if value is not None:
                value.back()
            elif now is not None and now is not buffer:
                # As after ``self.mean = 0.9 * self.mean + ...``: others know the tensor that was there.
                buffer.copy_(now)
            names[name] = buffer
        for part, members in self._members:
            if not _alike(part, members):
                part.clear()
                part.update(members)
        for _, memo in self._hooks:
            memo.back()
        for layer, mode in self._modes:
            layer.training = mode
        for frozen in self._frozen:
            frozen.back()
        for own in self._attributes:
            own.back()
        return self._module


class _Frozen:
    """A parameter that is not trained, with a copy: a teacher that follows is written to by ``data``."""

    def __init__(self, param: Tensor) -> None:
        self._param, self._copy = param, param.detach().clone()

    def changed(self) -> bool:
        return not equal(self._param, self._copy)

    def back(self) -> None:
        if self.changed():
            self._param.detach().copy_(self._copy)


def _alike(part: dict[Any, Any], there: dict[Any, Any]) -> bool:
    """Tell whether two dictionaries have the same members in the same order."""
    return len(part) == len(there) and (not part or _ids(part) == _ids(there))


def _ids(members: dict[Any, Any]) -> list[tuple[Any, int]]:
    return [(name, id(value)) for name, value in members.items()]
