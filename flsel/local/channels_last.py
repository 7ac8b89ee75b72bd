"""Images with their channels last while a CPU evaluates a model; benchmarks/results.md has what it saves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flsel.local.snapshot import undisturbed
from flsel.local.tasks import Task
from flsel.local.torch_internals import own_parameters

_LOG = logging.getLogger("flsel")


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
            found = _evaluated(task, outputs)
        usual = _evaluated(task, outputs)
    except Exception as error:  # Anything that a user's step may raise; if it is wrong, its turn will come.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    else:
        if all(_close(one, other) for one, other in zip(found, usual, strict=True)):
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
