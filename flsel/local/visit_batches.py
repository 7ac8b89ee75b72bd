"""The batches of a visit in turn: gathered from memory or read by the dataset, and augmented."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from flsel.data.read_later import Later
from flsel.data.trees import Tree
from flsel.local.program import Program
from flsel.rng import torch_seed


@dataclass(frozen=True)
class VisitBatches:
    """Some batches of a visit; iterating gives inputs and targets as :meth:`Program.batch`.

    Attributes:
        program: The client's side.
        table: Positions of all batches, int64 ``[steps, size]``, -1 padded.
        client: Client id.
        draw: What the randomness depends on besides seed, client and step (:attr:`Visit.draw`).
        first: Number of the first step.
        stop: Number of the step behind the last; None takes all.
    """

    program: Program
    table: Tensor
    client: int
    draw: int
    first: int = 0
    stop: int | None = None

    def __len__(self) -> int:
        return len(self.table[self.first : self.stop])

    def __iter__(self) -> Iterator[tuple[Tree, Tree]]:
        program, data = self.program, self.program.population
        table = self.table[self.first : self.stop]
        rows = [row[:length] for row, length in zip(table, (table >= 0).sum(dim=1).tolist(), strict=True)]
        if data.augment is None and not isinstance(data.x, Later):
            yield from map(program.batch, rows)
            return
        steps = range(self.first, self.first + len(rows))
        seeds = [torch_seed(program.seed, "augment", self.draw, self.client, step) for step in steps]
        if isinstance(data.x, Later):
            for raw, seed in zip(data.x.batches(rows, seeds), seeds, strict=True):
                yield program.ready(raw, seed)
            return
        for row, seed in zip(rows, seeds, strict=True):
            yield program.batch(row, seed)
