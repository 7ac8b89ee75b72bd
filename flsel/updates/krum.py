"""Krum and MultiKrum: the updates that are closest to the others.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer: "Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent", NeurIPS 2017, sections 4 and 5.

**Deviations.** The paper's workers send gradients. Here they send updates. Distances leave out the running
statistics of normalisation layers. A round may bring fewer than 2 f + 3 updates, because clients are late
or unavailable. An update is then compared with at least one other, and the paper's guarantee does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch

from flsel.arguments import Range
from flsel.params import Params, height, inner_products
from flsel.updates.aggregate import Aggregate


@final
@dataclass(frozen=True)
class Krum(Aggregate):
    """Take the update whose sum of squared distances to its K - f - 2 closest others is smallest.

    Attributes:
        corrupt: Number of corrupt clients in a round that is withstood (f); ``clients_per_round`` must be at
            least 2 f + 3.
    """

    corrupt: Annotated[int, Range(0)] = 1

    @property
    def least(self) -> int:
        """Fewest ``clients_per_round``, 2 f + 3."""
        return 2 * self.corrupt + 3

    def join(self, deltas: Params) -> Params:
        """Return the update with the smallest score."""
        best = int(krum_scores(deltas, self.corrupt).argmin())
        return {name: value[best].clone() for name, value in deltas.items()}


@final
@dataclass(frozen=True)
class MultiKrum(Aggregate):
    """Take the mean of the m updates with the smallest scores of Krum.

    Attributes:
        corrupt: As for ``Krum`` (f).
        keep: Number of updates in the mean (m), at most all; null means K - f.
    """

    corrupt: Annotated[int, Range(0)] = 1
    keep: Annotated[int | None, Range(1)] = None

    @property
    def least(self) -> int:
        """Fewest ``clients_per_round``, 2 f + 3."""
        return 2 * self.corrupt + 3

    def join(self, deltas: Params) -> Params:
        """Return the mean of the updates with the smallest scores."""
        count = height(deltas)
        keep = max(count - self.corrupt, 1) if self.keep is None else min(self.keep, count)
        best = np.sort(krum_scores(deltas, self.corrupt).argsort(kind="stable")[:keep])
        at = torch.from_numpy(best)
        return {name: value[at.to(value.device)].mean(dim=0) for name, value in deltas.items()}


def krum_scores(deltas: Params, corrupt: int) -> np.ndarray:
    """Return the sum of each update's squared distances to its closest others, float64 ``[K]``.

    Args:
        deltas: K updates.
        corrupt: f; the closest K - f - 2 others count, and at least one if there is one.
    """
    products = inner_products(deltas)
    squares = np.diag(products)
    distances = np.maximum(squares[:, None] + squares[None] - 2 * products, 0.0)
    np.fill_diagonal(distances, -1.0)  # each update itself comes first
    neighbours = max(len(squares) - corrupt - 2, 1)
    scores: np.ndarray = np.sort(distances, axis=1)[:, 1 : 1 + neighbours].sum(axis=1)
    return scores
