"""TopK: send the largest numbers of an update only.

A. F. Aji, K. Heafield: "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; S. U. Stich,
J.-B. Cordonnier, M. Jaggi: "Sparsified SGD with Memory", NeurIPS 2018.

**Deviations.** The papers compress the gradient of every step. Here a client's whole update is compressed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, final

import torch
from torch import Tensor

from flsel.arguments import Range
from flsel.params import Params
from flsel.selector.client_rows import allocate
from flsel.updates._vectors import as_rows, as_stack, with_feedback
from flsel.updates.update_step import Message, Senders, UpdateStep

INDEX_BITS = 32


@final
@dataclass(eq=False)
class TopK(UpdateStep):
    """Send the k numbers of an update with the largest magnitude; the others become zero.

    A sent number costs its value and an index of 32 bits. If this is more than the whole update, the whole
    update is charged. Memory with ``feedback``: one model per client that ever took part.

    Attributes:
        share: Share of the trainable parameters that is sent, at least one of them; k is rounded.
        feedback: Whether a client adds to its next update what it did not send (error feedback).
    """

    share: Annotated[float, Range(above=0, high=1)] = 0.05
    feedback: bool = True

    @property
    def remembers(self) -> bool:
        """Whether clients keep what they did not send."""
        return self.feedback

    def bound(self, before: float) -> float:
        """Return the bound before, which leaving numbers out keeps; what is kept back has none."""
        return math.inf if self.feedback else before

    def reset(self, params: Params, clients: int) -> None:
        """Start with nothing kept back."""
        if self.feedback:
            self.slots_, self.errors_ = allocate(params, clients)

    def on_client(self, deltas: Params, senders: Senders) -> Params:
        """Keep the k largest numbers of each update."""
        if self.feedback:
            return with_feedback((self.slots_, self.errors_), senders.clients, deltas, self._largest)
        return as_stack(self._largest(as_rows(deltas)), deltas)

    def message(self, before: Message) -> Message:
        """Return k numbers with their indices, or the whole update if it is smaller."""
        sparse = replace(before, numbers=self._count(before.numbers), index_bits=INDEX_BITS)
        return min(sparse, before, key=lambda message: message.bytes)

    def _count(self, numbers: int) -> int:
        return max(1, round(self.share * numbers))

    def _largest(self, updates: Tensor) -> Tensor:
        """Return updates ``[K, P]`` with zeros but for the k largest; of equal numbers the first count."""
        sizes, count = updates.abs(), self._count(updates.shape[1])
        least = sizes.topk(count, dim=1).values[:, -1:]
        larger, equal = sizes > least, sizes == least
        left = count - larger.sum(dim=1, keepdim=True)
        kept = larger | (equal & (equal.cumsum(dim=1) <= left))
        return torch.where(kept, updates, torch.zeros_like(updates))
