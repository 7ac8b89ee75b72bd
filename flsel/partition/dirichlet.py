"""Label mixes drawn from Dirichlet distributions: per client, per class, and in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.partition.base import (
    TINY,
    Partition,
    apportion,
    attempts,
    capped,
    cut_at_shares,
    deal,
    repeated,
)


@final
@dataclass(frozen=True)
class Dirichlet(Partition):
    """Draw every client's label mix q ~ Dir(alpha * p), p being the label frequencies of the dataset.

    Hsu, Qi and Brown 2019; used by FedCat. Clients draw one after another, without replacement; a label
    that is used up leaves the mixes of the clients that follow, which are renormalised. If a mix has no
    mass on what is left, its client draws from the rest as it is.

    Every example is dealt exactly once; sizes are equal up to one example unless ``sizes`` says otherwise.

    Attributes:
        alpha: Concentration; a small value gives one label per client, a large one the label mix of the
            dataset.
        sizes: Relative sizes of the clients, repeated over them; ``[1]`` makes them equal.
    """

    after_holdouts = True
    alpha: Annotated[float, Range(above=0)] = 0.5
    sizes: Annotated[tuple[float, ...], Range(above=0)] = (1.0,)

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Let one client after another draw from its mix."""
        remaining = np.bincount(labels)
        mixes = rng.dirichlet(self.alpha * remaining / len(labels), size=clients)
        sizes = apportion(len(labels), repeated(self.sizes, clients))
        table = np.zeros(mixes.shape, dtype=np.int64)
        for client, size in enumerate(sizes):
            table[client] = _take(mixes[client], size, remaining, rng)
            remaining = remaining - table[client]
        return deal(table, labels, rng)


@final
@dataclass(frozen=True)
class DirichletPerClass(Partition):
    """Split every label over the clients by shares ~ Dir(alpha, ..., alpha).

    Yurochkin et al. 2019; Li et al. 2022. All labels are redrawn until every client has ``min_size``
    examples.

    Every example is dealt exactly once; sizes vary.

    **Deviations.** A client that already holds an average share can receive more (``HicsDirichlet`` has a
    cap). Redrawing ends with an error after a number of tries.

    Attributes:
        alpha: Concentration; a small value gives each label to few clients, a large one to all equally.
        min_size: Smallest number of examples of a client.
    """

    after_holdouts = True
    alpha: Annotated[float, Range(above=0)] = 0.5
    min_size: Annotated[int, Range(0)] = 10

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Split the labels until every client has ``min_size`` examples."""
        if self.min_size * clients > len(labels):
            raise UserError(
                f"partition.min_size must be at most {len(labels) // clients} for {clients} clients and "
                f"{len(labels)} training examples, got {self.min_size}."
            )
        totals = np.bincount(labels)
        tries = attempts(clients * len(totals))
        for _ in range(tries):
            shares = rng.dirichlet(np.full(clients, self.alpha), size=len(totals))
            table = np.stack(
                [cut_at_shares(share, total) for share, total in zip(shares, totals, strict=True)], axis=1
            )
            if table.sum(axis=1).min() >= self.min_size:
                return deal(table, labels, rng)
        raise UserError(
            f"{tries} draws with partition.alpha {self.alpha} left some of {clients} clients with fewer than "
            f"{self.min_size} examples; raise partition.alpha or lower partition.min_size."
        )


@final
@dataclass(frozen=True)
class HicsDirichlet(Partition):
    """Give blocks of clients label shares of different concentration, at nearly equal sizes.

    HiCS-FL, section 6.10, with the cap and the redrawing of its code. P concentrations make P blocks of
    N/P consecutive clients. Block i receives ``S // P // C`` examples of every label (fewer where a label
    has fewer left), and splits each label in turn by shares ~ Dir(alpha_i, ..., alpha_i) over its
    clients; a client that already holds the block's average receives nothing more. A block is redrawn
    until each of its clients has a fifth of the average.

    Every example is dealt at most once; what does not fit into equal blocks is left out.

    **Deviations.** A block's examples of a label are random instead of the i-th slice of the file. If all
    clients below the cap have a share of zero, they share equally; the code divides by zero. Redrawing ends
    with an error after a number of tries.

    Attributes:
        alphas: Concentrations alpha_1..alpha_P; P must divide the number of clients. The paper's setting
            {0.001} is 0.001 five times in the code, because ten labels that go to one client each cannot fill
            one block of 50 clients.
    """

    after_holdouts = True
    alphas: Annotated[tuple[float, ...], Range(above=0)] = (0.001, 0.002, 0.005, 0.01, 0.5)

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Split each block of clients with its own concentration."""
        blocks = len(self.alphas)
        if clients % blocks:
            raise UserError(
                f"clients must be a multiple of {blocks}, the number of partition.alphas, got {clients}."
            )
        totals = np.bincount(labels)
        average = len(labels) // blocks / (clients // blocks)
        slice_size = len(labels) // blocks // len(totals)
        tables = []
        for block, alpha in enumerate(self.alphas):
            slices = np.clip(totals - block * slice_size, 0, slice_size)
            tables.append(_capped_block(alpha, slices, clients // blocks, average, rng))
        return deal(np.concatenate(tables), labels, rng)


def _take(mix: np.ndarray, size: int, remaining: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw ``size`` examples one by one from ``mix`` without replacement, int64 ``[C]``.

    Drawing all at once, keeping what there is and drawing the rest again from the labels that are left
    has the same distribution.
    """
    taken = np.zeros_like(remaining)
    while (missing := size - taken.sum()) > 0:
        room = remaining - taken
        weights = np.where(room > 0, mix, 0.0)
        if weights.sum() < TINY:
            weights = room.astype(np.float64)
        taken += np.minimum(rng.multinomial(missing, weights / weights.sum()), room)
    return taken


def _capped_block(
    alpha: float, slices: np.ndarray, clients: int, average: float, rng: np.random.Generator
) -> np.ndarray:
    """Split the ``slices`` (``[C]`` examples) of one block, int64 ``[clients, C]``."""
    tries = attempts(clients * len(slices))
    for _ in range(tries):
        table = capped(alpha, slices, clients, average, rng)
        if table.sum(axis=1).min() >= int(0.2 * average):
            return table
    raise UserError(
        f"{tries} draws for {alpha} of partition.alphas left some of {clients} clients with less than "
        "a fifth of the average; use larger or more partition.alphas, or fewer clients."
    )
