"""Answer a step's questions about tensors as outside of ``torch.func.vmap``, or refuse them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, final

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from flsel.local.torch_internals import beneath_vmap

_REQUIRES: Any = Tensor.requires_grad.__get__  # type: ignore[attr-defined]
# What hands a tensor's numbers to Python, or its memory to another library.
_LEAVING: tuple[Any, ...] = (
    Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__deepcopy__, Tensor.__reduce_ex__,
    Tensor.__dlpack__, Tensor.__repr__, Tensor.__format__, Tensor.data_ptr, Tensor.untyped_storage,
    Tensor.storage,
)  # fmt: skip


def mappable() -> AbstractContextManager[None]:
    """Let attention be written out: ``torch.func.vmap`` would call its kernels for one model at a time."""
    written: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return written


@final
class Queries(TorchFunctionMode):
    """Answers what a step asks of tensors while it runs for a stack of clients or is recorded.

    Under ``torch.func.vmap`` no tensor says that it requires a gradient: a penalty on all parameters that do
    would be none. Numbers that leave torch are the recorded batch's for ever.

    Args:
        leaving: Raises the refusal of a step whose numbers leave torch; None lets torch answer.

    Attributes:
        needed: Whether the step asked for something that torch would have answered otherwise.
    """

    def __init__(self, leaving: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._leaving = leaving
        self.needed = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == _REQUIRES:
            self.needed = True
            return func(*args) or func(beneath_vmap(args[0]))
        if self._leaving is not None and func in _LEAVING:
            self._leaving()
        return func(*args, **(kwargs or {}))
