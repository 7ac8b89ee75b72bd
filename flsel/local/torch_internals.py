"""Private names of torch that flsel uses. No other module of flsel uses any.

Every name has a substitute, so that flsel starts without it and trains client by client. Where one is gone,
:func:`gone` names it, and no clients are stacked: the trainers that stack them need most of these names.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

_LOG = logging.getLogger("flsel")
USED: list[str] = []
"""Every name that is looked up here."""
_missing: list[str] = []


def _note(name: str, exists: bool) -> None:
    USED.append(name)
    if not exists:
        _missing.append(name)


def _find(name: str, instead: Any = None) -> Any:
    """Return what a dotted name of torch stands for; if it is gone, note that and return the substitute."""
    value: Any = torch
    path = "torch"
    for part in name.split("."):
        path += f".{part}"
        if not hasattr(value, part):
            try:
                import_module(path)
            except ImportError:
                _note(f"torch.{name}", False)
                return instead
        value = getattr(value, part)
    _note(f"torch.{name}", True)
    return value


class _Nothing:
    """Substitutes for a class that is gone: nothing is an instance of it."""


# Operations as dispatch modes see them.
OpOverload: Any = _find("_ops.OpOverload", _Nothing)
TorchDispatchMode: Any = _find("utils._python_dispatch.TorchDispatchMode", _Nothing)
TO_COPY, LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD, UNSAFE_VIEW, CONVOLVE = (
    _find(f"ops.aten.{name}.default", object())
    for name in ("_to_copy", "_log_softmax", "_log_softmax_backward_data", "_unsafe_view", "convolution")
)
_has_kernel = _find("_C._dispatch_has_kernel_for_dispatch_key")
_find("ops.aten.add.Tensor._schema")
_is_batched, _unwrapped = _find("_C._functorch.is_batchedtensor"), _find("_C._functorch.get_unwrapped")

# Nested containers.
tree_flatten, tree_unflatten, tree_leaves, tree_map_only = (
    _find(f"utils._pytree.{name}")
    for name in ("tree_flatten", "tree_unflatten", "tree_leaves", "tree_map_only")
)

# One call for many tensors.
foreach_add_, foreach_mul, foreach_mul_ = (_find(f"_foreach_{name}") for name in ("add_", "mul", "mul_"))
_foreach_copy_ = _find("_foreach_copy_")

_find("Tensor._version")

# Bookkeeping of modules and tensors, which hooks go through.
_FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_HOOK_FLAGS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
for _name in ("_parameters", "_buffers", "_modules", *_FORWARD_HOOKS, *_BACKWARD_HOOKS, *_HOOK_FLAGS):
    _note(f"torch.nn.Module().{_name}", _name in vars(nn.Module()))
for _name in _TENSOR_HOOKS:
    _note(f"torch.Tensor.{_name}", hasattr(Tensor, _name))

# torch.optim keeps these from what torch.compile compiles, and imports the compiler to do so.
_WRAPPED = ("add_param_group", "state_dict", "load_state_dict")
_GUARDED: dict[str, Any] = {name: vars(Optimizer)[name] for name in _WRAPPED if name in vars(Optimizer)}


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let optimizers be made, saved and restored without importing ``torch._dynamo``.

    They import it to keep some methods out of what ``torch.compile`` compiles. Where nothing has imported it,
    nothing is being compiled.
    """
    bare = {name: getattr(method, "__wrapped__", method) for name, method in _GUARDED.items()}
    _set(_GUARDED if "torch._dynamo" in sys.modules else bare)
    try:
        yield
    finally:
        _set(_GUARDED)


def _set(methods: dict[str, Any]) -> None:
    for name, method in methods.items():
        setattr(Optimizer, name, method)


_GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
with without_compiler():
    _optimizer = vars(SGD([torch.zeros(1)]))
for _name in _STEP_HOOKS:
    _note(f"torch.optim.SGD().{_name}", _name in _optimizer)


def gone() -> tuple[str, ...]:
    """Name what flsel uses and this torch does not have."""
    return tuple(_missing)


@functools.cache
def warn_of_gone() -> None:
    """Say once in a process what is gone, and what follows."""
    _LOG.warning(
        "torch %s has no %s, which training clients together needs: clients train one by one, as with "
        "local.backend sequential",
        torch.__version__,
        ", ".join(_missing),
    )


def has_kernel(op: Any, device: str) -> bool:
    """Tell whether an operation has a kernel of its own on a type of device."""
    return _has_kernel is not None and bool(_has_kernel(op.name(), device.upper()))


def beneath_vmap(tensor: Tensor) -> Tensor:
    """Return the stack that stands for a tensor under ``torch.func.vmap``; outside, the tensor itself."""
    while _is_batched is not None and _is_batched(tensor):
        tensor = _unwrapped(tensor)
    return tensor


def schema(op: Any) -> Any:
    """Return what an operation declares: arguments, results, and which of them share memory."""
    return op._schema


def overload(op: Any) -> str:
    """Return the name of an operation's overload, such as ``Tensor`` of ``aten::add.Tensor``."""
    return str(op.name()).partition(".")[2] or "default"


def copy_all(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors."""
    if _foreach_copy_ is not None:
        _foreach_copy_(to, values)
        return
    for one, value in zip(to, values, strict=True):
        one.copy_(value)


def writes_to(tensor: Tensor, *, unknown: object = None) -> object:
    """Return a mark that equals an earlier one if nothing was written to the tensor between them.

    Args:
        tensor: The tensor.
        unknown: What to return where torch does not tell; None returns marks that equal no other.
    """
    return getattr(tensor, "_version", object() if unknown is None else unknown)


def has_bf16() -> bool:
    """Tell whether the CPU is known to compute in bfloat16."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def own_parameters(layer: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """Return the parameters that a layer itself has, by the names of its attributes."""
    own = vars(layer).get("_parameters")
    if isinstance(own, dict):
        return own
    return dict(layer.named_parameters(recurse=False, remove_duplicate=False))  # of torch.jit's, too


def own_buffers(layer: nn.Module) -> dict[str, Tensor | None]:
    """Return the dictionary in which a layer keeps its own buffers, by the names of its attributes."""
    own = vars(layer).get("_buffers")
    return own if isinstance(own, dict) else {}


def is_hooked(layer: nn.Module) -> bool:
    """Tell whether something is called before or after a layer's forward or backward pass."""
    return any(vars(layer).get(name) for name in (*_FORWARD_HOOKS, *_BACKWARD_HOOKS))


def gradients_are_hooked(owner: object) -> bool:
    """Tell whether something is called where the gradient of a layer or a tensor is made."""
    return any(getattr(owner, name, None) for name in (*_BACKWARD_HOOKS, *_TENSOR_HOOKS))


Hooks = tuple[list[Callable[..., Any]], ...]
"""Of a tensor's gradient: those called with it, and those called once it is accumulated."""


def hooks_of(tensor: Tensor) -> Hooks:
    """Return the hooks of a tensor's gradient."""
    return tuple(list((getattr(tensor, name, None) or {}).values()) for name in _TENSOR_HOOKS)


def add_hooks(tensor: Tensor, hooks: Hooks) -> None:
    """Give a tensor the hooks of another one's gradient."""
    own, accumulated = hooks
    for hook in own:
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]
    for hook in accumulated:
        tensor.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def every_step_is_hooked() -> bool:
    """Tell whether something may be called before or after the steps of all optimizers."""
    return any(getattr(sys.modules[Optimizer.__module__], name, True) for name in _GLOBAL_HOOKS)


def step_is_hooked(optimizer: Optimizer) -> bool:
    """Tell whether something may be called before or after an optimizer's step."""
    own = vars(optimizer)
    return any(own.get(name, True) for name in _STEP_HOOKS)
