"""The clients of one stack: where they start, and which examples make up their steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flsel.local.program import Program
from flsel.stack import Params


@dataclass(frozen=True)
class Cohort:
    """Clients that train together, those with most steps first.

    Attributes:
        rows: Where their end models belong.
        starts: Models they start from, each ``[n, ...]``.
        clients: Ids, int64 ``[n]``.
        positions: Examples of their batches, int64 ``[n, steps, size]``, -1 padded.
    """

    rows: list[int]
    starts: Params
    clients: Tensor
    positions: Tensor

    @cached_property
    def lengths(self) -> Tensor:
        """Examples in each batch, int64 ``[n, steps]``."""
        return (self.positions >= 0).sum(dim=2)

    @cached_property
    def steps(self) -> list[int]:
        """Local steps of each client, descending."""
        counts: list[int] = (self.lengths > 0).sum(dim=1).tolist()
        return counts

    @cached_property
    def longest(self) -> list[int]:
        """Examples in the longest batch of each step."""
        sizes: list[int] = self.lengths.amax(dim=0).tolist()
        return sizes

    def resized(self, count: int) -> Cohort:
        """Return the first clients, or all and as many more without examples as it takes to be ``count``."""
        missing = count - len(self.clients)
        index = (
            torch.arange(count) if missing <= 0 else torch.tensor([*range(count - missing), *[0] * missing])
        )
        positions = self.positions[index]
        if missing > 0:
            positions[-missing:] = -1
        starts = {name: start[index] for name, start in self.starts.items()}
        return Cohort(self.rows[:count], starts, self.clients[index], positions)

    def places(self, step: int, size: int) -> Tensor:
        """Return the positions of a step's examples, int64 ``[n * size]``; any where there is none."""
        return self.positions[:, step, :size].clamp(min=0).reshape(-1)

    def labels(self, program: Program, span: range, size: int, weigh: bool) -> list[Tensor]:
        """Return the labels of S steps, and how much each example weighs in its batch's mean.

        Returns:
            Int64 ``[S, n, size]``; with ``weigh`` also the weights in the same shape, zero in padded places.
        """
        positions = self.positions[:, span.start : span.stop, :size].transpose(0, 1)
        y = program.population.y.index_select(0, positions.clamp(min=0).reshape(-1)).view(positions.shape)
        if not weigh:
            return [y]
        here = (positions >= 0).to(next(iter(self.starts.values())).dtype)
        return [y, here / here.sum(dim=2, keepdim=True).clamp(min=1)]
