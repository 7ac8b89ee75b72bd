"""The clients' examples as the model takes them, gathered into a batch's memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from flsel.data.population import Population


class ExampleGatherer:
    """Gather normalised inputs of a population.

    Args:
        population: The clients' data.
        channels_last: Keep images with their channels last.
    """

    def __init__(self, population: Population, channels_last: bool) -> None:
        self._normalize = population.normalize
        sample = population.normalize(population.x[:1])
        self._images = channels_last and sample.ndim == 4
        self.dtype, self.shape = sample.dtype, sample.shape[1:]
        # A normalised copy of everything would be no faster: gathering four times the bytes costs as much.
        self._x = population.x.permute(0, 2, 3, 1).contiguous() if self._images else population.x
        self._ready = self._x.dtype == self.dtype
        self._scaled = self._x.dtype == torch.uint8

    def buffer(self, like: Tensor) -> Tensor:
        """Allocate the memory of a batch shaped like ``like``."""
        if not self._images:
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        return torch.empty_like(like.movedim(-3, -1), memory_format=torch.contiguous_format).movedim(-1, -3)

    def into(self, batch: Tensor) -> Callable[[Tensor], object]:
        """Return what writes the inputs at positions (int64, flat) into a batch of :meth:`buffer`."""
        stored = batch.movedim(-3, -1) if self._images else batch
        flat = stored.view(-1, *self._x.shape[1:])
        if self._ready:
            return partial(torch.index_select, self._x, 0, out=flat)
        images = flat.movedim(-1, -3) if self._images else flat

        def gather(positions: Tensor) -> None:
            flat.copy_(self._x.index_select(0, positions))
            if self._scaled:
                images.mul_(self._normalize.scale).add_(self._normalize.shift)

        return gather
