"""How a network computes on a CPU without Lightning: its precision, and images with their channels last.

benchmarks/results.md has what channels that come last save in evaluations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flsel.local.snapshot import undisturbed
from flsel.local.tasks import Task
from flsel.local.torch_internals import own_parameters

if TYPE_CHECKING:
    from lightning.fabric import Fabric

_LOG = logging.getLogger("flsel")
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


@contextmanager
def channels_last(module: nn.Module) -> Iterator[None]:
    """Lay out the weights of a module's convolutions with channels last within the block.

    What a convolution returns is laid out like its weight, and so is what pooling and the like make of it.
    The values are the same. What the block writes to these weights is lost.
    """
    weights = _weights(module)
    before = [weight.data for weight in weights]
    try:
        for weight in weights:
            # contiguous() would leave the weight of a single channel as it is, which has both layouts.
            weight.data = weight.data.clone(memory_format=torch.channels_last)
        yield
    finally:
        for weight, data in zip(weights, before, strict=True):
            weight.data = data


def takes_channels_last(task: Task, outputs: Callable[[], list[Tensor]]) -> bool:
    """Tell whether a task on a CPU convolves images, and computes the same with their channels last.

    One that does not, for instance since it flattens them by ``view``, keeps its layout, which is logged.

    Args:
        task: The client's program.
        outputs: Computes what evaluations ask the task for, on a few examples.
    """
    if task.device.type != "cpu" or not _weights(task):
        return False
    try:
        with channels_last(task):
            answers = _evaluated(task, outputs)
        usual = _evaluated(task, outputs)
    except Exception as error:  # Anything that a user's step may raise; if it is wrong, its turn will come.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    else:
        if all(_close(one, other) for one, other in zip(answers, usual, strict=True)):
            return True
        reason = "the model computes something else"
    _LOG.info("evaluation keeps images with their channels first, which is slower; otherwise: %s", reason)
    return False


def _evaluated(task: Task, outputs: Callable[[], list[Tensor]]) -> list[Tensor]:
    with undisturbed(task):
        task.eval()
        return outputs()


def _close(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) <= 1e-3 * float(other.abs().max())


def _weights(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of a module's convolutions of images, each once."""
    own = (own_parameters(m).get("weight") for m in module.modules() if isinstance(m, nn.Conv2d))
    return list({id(weight): weight for weight in own if weight is not None}.values())
