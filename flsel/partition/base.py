"""The contract of a partition, and the arithmetic that several schemes share.

Dimensions: S examples, N clients, C labels that occur. A *table* holds how many examples of every label
each client receives, int64 ``[N, C]``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import numpy as np

from flsel.arguments import Checked
from flsel.errors import UserError

MAX_SHARES = 10_000_000

# Below this a sum of probabilities has lost too many digits to be divided by.
TINY = float(np.finfo(np.float64).tiny / np.finfo(np.float64).eps)


class Partition(Checked, ABC):
    """Assigns the examples of a dataset to clients.

    A scheme overrides :meth:`split`, stores nothing but its arguments and draws from the given generator
    alone, so equal arguments give equal clients.

    Attributes:
        reads_labels: Whether the scheme reads labels. One that does is refused where data have neither class
            labels, nor groups, nor strata.
        after_holdouts: Whether ``split`` deals what the holdouts leave. By default it deals all training
            examples, by the data set's own indices, and holdouts are then taken out of the clients' examples.
    """

    reads_labels = True
    after_holdouts = False

    @final
    def __call__(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Deal every example to at most one client.

        Args:
            labels: Label of every example, integers ``[S]``.
            clients: N, from 1 to S.
            rng: Source of all draws.

        Returns:
            For each of the N clients the positions of its examples in ``labels``, int64, ascending,
            possibly none.

        Raises:
            UserError: If the dataset cannot be dealt like this.
        """
        if clients < 1:
            raise UserError(f"clients must be >= 1, got {clients}.")
        if clients > len(labels):
            raise UserError(f"clients must be at most the {len(labels)} training examples, got {clients}.")
        codes = np.unique(labels, return_inverse=True)[1]
        dealt = self.split(codes.astype(np.int64), clients, rng)
        shards = [np.asarray(shard) for shard in dealt] if isinstance(dealt, list | tuple) else []
        if len(shards) != clients or any(shard.ndim != 1 for shard in shards):
            got = f"{len(shards)} of them" if shards else type(dealt).__name__
            raise UserError(
                f"{type(self).__name__}.split must return a list of {clients} arrays of positions, one for "
                f"each client, got {got}."
            )
        return shards

    def owners(self, labels: np.ndarray) -> np.ndarray | None:
        """Return the client of every training example of the data set, int64 ``[S]``, -1 for nobody.

        A scheme that knows the number of clients itself overrides this. None, the default, lets :meth:`split`
        deal the examples.

        Args:
            labels: Label of every training example, int64 ``[S]``.
        """
        return None

    @abstractmethod
    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Deal the examples, after the arguments were checked.

        Args:
            labels: Label of every example, int64 ``[S]``, renumbered to ``0..C-1`` without gaps.
            clients: N, from 1 to S.
            rng: Source of all draws.

        Returns:
            What :meth:`__call__` returns.
        """


def group(positions: np.ndarray, owners: np.ndarray, clients: int) -> list[np.ndarray]:
    """List the positions of every client.

    Args:
        positions: Examples, int64 ``[n]``.
        owners: The client of each of them, int64 ``[n]`` in ``0..clients-1``.
        clients: N.

    Returns:
        N int64 arrays, each ascending.
    """
    ordered = positions[np.lexsort((positions, owners))]
    return list(np.split(ordered, np.cumsum(np.bincount(owners, minlength=clients))[:-1]))


def by_label(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sort the positions of ``labels`` (int64 ``[S]``) by label, in random order within a label."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def deal(table: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each client random examples according to a table.

    Args:
        table: Examples per client and label, int64 ``[N, C]``, columns at most the label totals.
        labels: Label of every example, int64 ``[S]`` in ``0..C-1``.
        rng: Decides which examples.

    Returns:
        Positions per client, as :meth:`Partition.__call__`.
    """
    clients, num_labels = table.shape
    totals = np.bincount(labels, minlength=num_labels)
    # Rank of every entry of the label-sorted list within its label: the first ones are dealt.
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(totals) - totals, totals)
    dealt = rank < np.repeat(table.sum(axis=0), totals)
    owners = np.repeat(np.tile(np.arange(clients), num_labels), table.T.ravel())
    return group(by_label(labels, rng)[dealt], owners, clients)


def capped(
    alpha: float, totals: np.ndarray, clients: int, cap: float, rng: np.random.Generator
) -> np.ndarray:
    """Split each label in turn by shares ~ Dir(alpha, ..., alpha) over the clients below a cap.

    Where all of them have a share of zero they share equally.

    Args:
        alpha: Concentration.
        totals: Examples of each label, int64 ``[C]``.
        clients: N.
        cap: Examples from which on a client receives nothing more.
        rng: Source of all draws.

    Returns:
        Examples of each label for each client, int64 ``[N, C]``.
    """
    table = np.zeros((clients, len(totals)), dtype=np.int64)
    for label, total in enumerate(totals):
        still_open = table.sum(axis=1) < cap
        shares = rng.dirichlet(np.full(clients, alpha)) * still_open
        if shares.sum() < TINY:
            shares = still_open.astype(np.float64)
        table[:, label] = cut_at_shares(shares, total)
    return table


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """Split ``total`` examples in proportion to ``weights`` by largest remainders, int64 ``[N]``."""
    exact = total * weights / weights.sum()
    sizes: np.ndarray = np.floor(exact).astype(np.int64)
    most_short = np.argsort(sizes - exact, kind="stable")
    sizes[most_short[: total - sizes.sum()]] += 1
    return sizes


def cut_at_shares(shares: np.ndarray, total: int) -> np.ndarray:
    """Cut ``total`` examples at the cumulative ``shares`` (``[N]``, any positive sum), int64 ``[N]``.

    Cuts are at the nearest example. Reference codes round them down, which hands the last client one of
    almost every label however small its shares.
    """
    edges = np.rint(np.cumsum(shares / shares.sum()) * total).astype(np.int64)
    return np.asarray(np.diff(edges, prepend=0))


def attempts(shares: int) -> int:
    """Return how often a draw of ``shares`` numbers may be repeated before giving up, 10 to 1,000 times."""
    return min(max(MAX_SHARES // shares, 10), 1000)


def repeated(pattern: Sequence[float], clients: int) -> np.ndarray:
    """Repeat relative sizes over the clients, float64 ``[clients]``."""
    return np.resize(np.asarray(pattern, dtype=np.float64), clients)
