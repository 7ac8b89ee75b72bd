"""The clients of one stack: where they start, and which examples make up their steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from flsel.local.dropout import step_keys, visit_key
from flsel.local.visit import Visit
from flsel.params import Params, repeated, stacked


@dataclass(frozen=True)
class Cohort:
    """Clients that train together, those with most steps first.

    Attributes:
        rows: Where their end models belong.
        starts: Models they start from, each ``[n, ...]``.
        clients: Ids, int64 ``[n]``.
        visits: Whose turns they are.
        positions: Examples of their batches, int64 ``[n, steps, size]``, -1 padded.
        y: Labels of all examples, on the device that trains.
        drawn: What their steps draw for generated features, each ``[n, steps, ...]``; may be empty.
    """

    rows: list[int]
    starts: Params
    clients: Tensor
    visits: list[Visit]
    positions: np.ndarray
    y: Tensor
    drawn: Params

    @cached_property
    def lengths(self) -> np.ndarray:
        """Examples in each batch, int64 ``[n, steps]``."""
        lengths: np.ndarray = (self.positions >= 0).sum(axis=2)
        return lengths

    @cached_property
    def steps(self) -> list[int]:
        """Local steps of each client, descending."""
        counts: list[int] = np.count_nonzero(self.lengths, axis=1).tolist()
        return counts

    @cached_property
    def longest(self) -> list[int]:
        """Examples in the longest batch of each step."""
        sizes: list[int] = self.lengths.max(axis=0).tolist()
        return sizes

    def resized(self, count: int) -> Cohort:
        """Return the first clients, or all and as many more without examples as it takes to be ``count``."""
        missing = count - len(self.clients)
        if missing == 0:
            return self
        index = [*range(min(count, len(self.clients))), *[0] * missing]
        positions = self.positions[index]
        if missing > 0:
            positions[-missing:] = -1
        there = torch.tensor(index, device=self.clients.device)
        starts = {name: start[there] for name, start in self.starts.items()}
        visits = [self.visits[i] for i in index]
        drawn = {name: table[there.to(table.device)] for name, table in self.drawn.items()}
        return Cohort(self.rows[:count], starts, self.clients[there], visits, positions, self.y, drawn)

    def keys(self, span: range) -> Tensor:
        """Return the keys of the dropout masks of S steps on the device that trains, int64 ``[S, n]``."""
        return step_keys(self.seeds, span).to(self.y.device)

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds of the visits' masks and global generators."""
        return [visit_key(visit.program.seed, visit.draw, visit.client) for visit in self.visits]

    def table(self, span: range, size: int) -> tuple[Tensor, Tensor]:
        """Tabulate the examples of S steps on the device that trains.

        Returns:
            Their positions, int64 ``[S, n * size]``, one of the batch's where there is none; and how
            much each weighs in its batch's mean, ``[S, n, size]``, zero where there is none.
        """
        positions = self.positions[:, span.start : span.stop, :size].swapaxes(0, 1)
        lengths = self.lengths[:, span.start : span.stop].T[:, :, None]
        # In an empty place stands the batch's first example: another's may be one that a model makes NaN of.
        filled = np.where(positions >= 0, positions, np.maximum(positions[:, :, :1], 0))
        places = torch.from_numpy(filled.reshape(len(span), -1))
        # In double precision, from which a quotient of small numbers is rounded as if it were made in single.
        weights = torch.from_numpy((positions >= 0) / np.maximum(lengths, 1))
        like = next(iter(self.starts.values()))
        return places.to(self.y.device), weights.to(like.dtype).to(self.y.device)


def padded(tables: list[np.ndarray]) -> np.ndarray:
    """Stack tables ``[steps, size]``, the longest first; -1 stands where the others have ended."""
    together = np.full((len(tables), *tables[0].shape), -1, dtype=np.int64)
    for table, row in zip(tables, together, strict=True):
        row[: len(table)] = table
    return together


def starts_of(models: list[Params]) -> Params:
    """Stack the models that clients start from; a view where it is one model for all, so never written to."""
    if all(model is models[0] for model in models):
        return repeated(models[0], len(models))
    return stacked(models)
