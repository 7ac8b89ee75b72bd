"""Schemes without a label distribution of their own: random, by size, by shards, natural."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.partition.base import Partition, apportion, by_label, group, repeated


@final
@dataclass(frozen=True)
class IID(Partition):
    """Deal random examples, equally many to each client.

    Every example is dealt exactly once; sizes differ by at most one.
    """

    reads_labels = False
    after_holdouts = True

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Deal equally many random examples to every client."""
        return _random(apportion(len(labels), np.ones(clients)), rng)


@final
@dataclass(frozen=True)
class BySize(Partition):
    """Deal random examples in unequal amounts: sizes differ between clients, label mixes do not.

    Every example is dealt exactly once. A client whose share is far below one example receives none.

    Attributes:
        sigma: Standard deviation of the logarithm of the sizes; 0 makes them equal.
        sizes: Relative sizes, repeated over the clients; they replace the log-normal draw.
    """

    reads_labels = False
    after_holdouts = True
    sigma: Annotated[float, Range(0)] = 1.0
    sizes: Annotated[tuple[float, ...] | None, Range(above=0)] = None

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Deal random examples according to the sizes."""
        if self.sizes is None:
            logs = self.sigma * rng.standard_normal(clients)
            weights = np.exp(logs - logs.max())
        else:
            weights = repeated(self.sizes, clients)
        return _random(apportion(len(labels), weights), rng)


@final
@dataclass(frozen=True)
class Shards(Partition):
    """Sort the examples by label, cut them into equal shards and give each client some at random.

    McMahan et al. 2017; FedCor's "2SPC" (``per_client=2``) and "1SPC" (``per_client=1``), section 5. A
    client sees at most ``per_client`` labels where the labels divide evenly into shards, else a few more.

    Every example is dealt exactly once.

    **Deviations.** If the examples do not divide evenly, shards differ by at most one example. The reference
    drops the remainder, all of it from the last label.

    Attributes:
        per_client: Shards per client.
    """

    after_holdouts = True
    per_client: Annotated[int, Range(1)] = 2

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Deal random shards of the examples sorted by label."""
        shards = clients * self.per_client
        if shards > len(labels):
            raise UserError(
                f"partition.per_client must be at most {len(labels) // clients} for {clients} clients and "
                f"{len(labels)} training examples, got {self.per_client}."
            )
        owner_of_shard = rng.permutation(shards) // self.per_client
        owners = np.repeat(owner_of_shard, apportion(len(labels), np.ones(shards)))
        return group(by_label(labels, rng), owners, clients)


@final
@dataclass(frozen=True)
class Natural(Partition):
    """Keep the natural clients of the dataset (LEAF's writers, the synthetic generators' clients).

    This class is a marker. The dataset itself assigns examples to clients, so nothing is dealt.
    """

    reads_labels = False
    after_holdouts = True

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Refuse: there is nothing to deal."""
        raise UserError(
            "partition Natural needs a dataset that has natural clients, and this one has none; "
            "choose another partition, such as IID or Dirichlet."
        )


def _random(sizes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return group(rng.permutation(len(owners)), owners, len(sizes))
