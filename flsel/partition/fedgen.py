"""FedGen's split of a part of the dataset by Dirichlet shares of each label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.partition.base import Partition, attempts, capped, deal


@final
@dataclass(frozen=True)
class FedGenDirichlet(Partition):
    """Split a capped number of examples of each label by shares ~ Dir(alpha, ..., alpha).

    FedGen (Zhu, Hong, Zhou 2021), section 6.1, as in its code. The cap is ``share`` of an average client's
    examples. Of each label the smaller of the cap and ``share`` of its examples are used; a client that holds
    the cap receives nothing of the labels that follow, which come in random order. All labels are redrawn
    until every client has ``min_size`` examples. With ten labels and 20 clients that is a quarter of MNIST.

    Every example is dealt at most once; sizes vary.

    **Deviations.** If all clients below the cap have a share of zero, they share equally; the code divides by
    zero. Redrawing ends with an error after a number of tries.

    Attributes:
        alpha: Concentration; a small value gives each label to few clients, a large one to all equally.
        share: Share of the examples that may be used.
        min_size: Smallest number of examples of a client.
    """

    after_holdouts = True
    alpha: Annotated[float, Range(above=0)] = 0.1
    share: Annotated[float, Range(above=0, high=1)] = 0.5
    min_size: Annotated[int, Range(0)] = 10

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Split the labels until every client has ``min_size`` examples."""
        found = np.bincount(labels)
        cap = self.share * len(labels) / clients
        totals = np.minimum(int(cap), (self.share * found).astype(np.int64))
        if self.min_size * clients > totals.sum():
            raise UserError(
                f"partition.min_size must be at most {totals.sum() // clients} for {clients} clients and the "
                f"{totals.sum()} training examples of partition.share {self.share}, got {self.min_size}."
            )
        tries = attempts(clients * len(totals))
        for _ in range(tries):
            order = rng.permutation(len(totals))
            table = np.zeros((clients, len(totals)), dtype=np.int64)
            table[:, order] = capped(self.alpha, totals[order], clients, cap, rng)
            if table.sum(axis=1).min() >= self.min_size:
                return deal(table, labels, rng)
        raise UserError(
            f"{tries} draws with partition.alpha {self.alpha} left some of {clients} clients with fewer than "
            f"{self.min_size} examples; raise partition.alpha or lower partition.min_size."
        )
