"""FedPNS's mixture of clients with i.i.d. data and clients with one or two labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.partition.base import Partition, by_label, group


@final
@dataclass(frozen=True)
class FedPNSMix(Partition):
    """Give a share of the clients random examples and the others shards of the sorted rest.

    FedPNS (Wu and Wang 2022), section V-A. The first round(iid_share * N) clients draw ``samples`` random
    examples each. What is left is sorted by label and cut into shards of ``samples / labels_per_client``;
    every other client draws ``labels_per_client`` of them. A shard that lies across the border of two labels
    has both, and the shards of one client may have the same label.

    Every example is dealt at most once, and every client has exactly ``samples``.

    **Deviations.** The reference cuts the whole training set into shards, so an example can belong to an
    i.i.d. client and to another client. Here the shards are cut from the examples that are left.

    Attributes:
        iid_share: Share of i.i.d. clients (sigma); the paper uses 0.2, 0.3 and 0.5.
        labels_per_client: Shards of each other client (rho); the paper uses 1 and 2.
        samples: Examples per client (D_i), a multiple of ``labels_per_client``.
    """

    after_holdouts = True
    iid_share: Annotated[float, Range(0, 1)] = 0.3
    labels_per_client: Annotated[int, Range(1)] = 1
    samples: Annotated[int, Range(1)] = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples % self.labels_per_client:
            raise UserError(
                f"samples must be a multiple of labels_per_client ({self.labels_per_client}), got "
                f"{self.samples}."
            )

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Deal random examples first, then shards of the rest."""
        if clients * self.samples > len(labels):
            raise UserError(
                f"partition.samples must be at most {len(labels) // clients} for {clients} clients and "
                f"{len(labels)} training examples, got {self.samples}."
            )
        iid = round(self.iid_share * clients)
        shuffled = rng.permutation(len(labels))
        first, rest = shuffled[: iid * self.samples], shuffled[iid * self.samples :]
        size = self.samples // self.labels_per_client
        chosen = rng.permutation(len(rest) // size)[: (clients - iid) * self.labels_per_client]
        shards = rest[by_label(labels[rest], rng)][: len(rest) // size * size].reshape(-1, size)[chosen]
        owners = np.repeat(np.arange(clients), self.samples)
        return group(np.concatenate([first, shards.ravel()]), owners, clients)
