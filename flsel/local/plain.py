"""Device and precision of a plain network on a CPU, without Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from lightning.fabric import Fabric

DTYPES = {"32-true": torch.float32, "64-true": torch.float64}


@final
class PlainFabric:
    """A plain stand-in for Lightning's Fabric, for runs in which Fabric would only call torch.

    Attributes:
        loggers: The trackers' Lightning loggers.

    Args:
        precision: A key of ``DTYPES``.
    """

    def __init__(self, precision: str) -> None:
        self._dtype = DTYPES[precision]
        self.loggers: list[Any] = []

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Give a module the precision, in place; single precision leaves it as it is, as in Fabric."""
        return module if self._dtype == torch.float32 else module.to(dtype=self._dtype)

    def setup_optimizers(self, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer, which works as it is."""
        return optimizer

    def autocast(self) -> AbstractContextManager[None]:
        """Let tensors that a model makes have the precision."""
        return nullcontext() if self._dtype == torch.float32 else self._with_default()

    @contextmanager
    def _with_default(self) -> Iterator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        loss.backward()  # type: ignore[no-untyped-call]


def mixes(fabric: Fabric | PlainFabric) -> bool:
    """Tell whether training computes in mixed precision."""
    if isinstance(fabric, PlainFabric):
        return False
    from lightning.fabric.plugins import MixedPrecision

    return isinstance(fabric.strategy.precision, MixedPrecision)
