"""The clients of one stack: where they start, and which examples make up their steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flsel.local.dropout import step_keys, visit_key
from flsel.local.visit import Visit
from flsel.stack import Params, repeated, stacked


@dataclass(frozen=True)
class Cohort:
    """Clients that train together, those with most steps first.

    Attributes:
        rows: Where their end models belong.
        starts: Models they start from, each ``[n, ...]``.
        clients: Ids, int64 ``[n]``.
        visits: Whose turns they are.
        positions: Examples of their batches, int64 ``[n, steps, size]``, -1 padded, on the CPU, where the
            shapes of the steps are decided.
        y: Labels of all examples, on the device that trains.
    """

    rows: list[int]
    starts: Params
    clients: Tensor
    visits: list[Visit]
    positions: Tensor
    y: Tensor

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

    @cached_property
    def shortest(self) -> list[int]:
        """Examples in the shortest batch of each step, 0 where a client has finished."""
        sizes: list[int] = self.lengths.amin(dim=0).tolist()
        return sizes

    def resized(self, count: int) -> Cohort:
        """Return the first clients, or all and as many more without examples as it takes to be ``count``."""
        missing = count - len(self.clients)
        if missing == 0:
            return self
        index = torch.tensor([*range(min(count, len(self.clients))), *[0] * missing])
        positions = self.positions[index]
        if missing > 0:
            positions[-missing:] = -1
        there = index.to(self.clients.device)
        starts = {name: start[there] for name, start in self.starts.items()}
        visits = [self.visits[i] for i in index.tolist()]
        return Cohort(self.rows[:count], starts, self.clients[there], visits, positions, self.y)

    def keys(self, span: range) -> Tensor:
        """Return the keys of the dropout masks of S steps on the device that trains, int64 ``[S, n]``."""
        return step_keys(self._keys, span).to(self.y.device)

    @cached_property
    def _keys(self) -> list[int]:
        return [visit_key(visit.program.seed, visit.round, visit.client) for visit in self.visits]

    def table(self, span: range, size: int) -> tuple[Tensor, Tensor]:
        """Tabulate the examples of S steps on the device that trains.

        Returns:
            Their positions, int64 ``[S, n * size]``, any where there is none; and how much each weighs in its
            batch's mean, ``[S, n, size]``, zero where there is none.
        """
        positions = self.positions[:, span.start : span.stop, :size].transpose(0, 1)
        like = next(iter(self.starts.values()))
        if min(self.shortest[span.start : span.stop]) >= size:
            weights = like.new_ones(positions.shape) / size
            return positions.reshape(len(span), -1).to(self.y.device), weights
        here = (positions >= 0).to(like.dtype)
        weights = here / here.sum(dim=2, keepdim=True).clamp_(min=1)
        places = positions.clamp(min=0).reshape(len(span), -1)
        return places.to(self.y.device), weights.to(self.y.device)


def starts_of(models: list[Params]) -> Params:
    """Stack the models that clients start from; a view where it is one model for all, so never written to."""
    if all(model is models[0] for model in models):
        return repeated(models[0], len(models))
    return stacked(models)
