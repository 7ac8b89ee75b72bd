"""Strata of Clustered Sampling: m distributions over clients whose sum gives each client its share.

Everything is in integers: of n clients, client i has the mass m n_i and each of the m rows the capacity
Q = sum n_i, so that a row's masses over Q are probabilities, and a client's masses over all rows are m n_i.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flsel.errors import UserError
from flsel.selectors._ward import cut_by_mass

_MOST = 2**63


class Shares(NamedTuple):
    """The clients to draw from.

    Attributes:
        clients: Ids of n clients of the pool, int64, ascending.
        masses: Mass m n_i of each, > 0, int64 ``[n]``; they sum to m times the capacity.
        capacity: Mass Q of a row.
    """

    clients: np.ndarray
    masses: np.ndarray
    capacity: int


class Rows(NamedTuple):
    """The non-zero entries of R, row by row.

    Attributes:
        row: Row k of each entry in 0..m-1, int64, ascending.
        client: Position i of its client in :class:`Shares`, int64.
        mass: Q r_ki > 0, int64; each row's masses sum to Q.
    """

    row: np.ndarray
    client: np.ndarray
    mass: np.ndarray


def shares_of(pool: np.ndarray, sizes: np.ndarray, clients_per_round: int) -> Shares:
    """Return the clients of the pool that have examples; if none has, all of them with equal masses.

    Args:
        pool: Ids of the available clients, int64, ascending.
        sizes: Examples of each of them.
        clients_per_round: Most rows; there are at most as many as clients.

    Raises:
        UserError: If the masses do not fit into 64-bit integers.
    """
    sizes = sizes.astype(np.int64) if sizes.any() else np.ones(len(pool), dtype=np.int64)
    some = sizes > 0
    count = min(clients_per_round, int(np.count_nonzero(some)))
    # Exact, by halves of 32 bits each: a sum of 64-bit integers may overflow.
    total = count * ((int((sizes >> 32).sum()) << 32) + int((sizes & (2**32 - 1)).sum()))
    if total >= _MOST:
        raise UserError(
            "clients_per_round times the examples of the available clients must be below 9.2e18 for "
            f"Clustered Sampling, whose sums are exact integers, got {total:.2g}; lower "
            "clients_per_round or the clients' sizes."
        )
    return Shares(pool[some], count * sizes[some], int(sizes.sum()))


def pour(order: np.ndarray, masses: np.ndarray, capacity: int) -> Rows:
    """Fill row after row with the clients in some order; a client that overflows goes on in the next row.

    Args:
        order: Positions of all n clients, int64 ``[n]``.
        masses: Mass of each client, int64 ``[n]``, in total a multiple of ``capacity``.
        capacity: Mass Q of a row.
    """
    gaps = np.full(masses.sum() // capacity, capacity)
    source, row, mass = _fill(masses[order], gaps)
    return Rows(row, order[source], mass)


def by_size(masses: np.ndarray, capacity: int) -> Rows:
    """Build R by Algorithm 1: pour the clients by decreasing size, ties by id."""
    return pour(np.argsort(-masses, kind="stable"), masses, capacity)


def by_tree(tree: np.ndarray, masses: np.ndarray, capacity: int, rng: np.random.Generator) -> Rows:
    """Build R by Algorithm 2: clusters of at most one row each, and the small ones dissolved.

    A client with more than a row's mass first gets whole rows of its own and joins with the rest. The m
    largest clusters are the rows, ascending; the clients of each other cluster, ascending and inside it in
    random order, fill them up.

    Args:
        tree: Merges of the n clients (:func:`flsel.selectors._ward.ward`).
        masses: Mass of each client, int64 ``[n]``, in total a multiple of ``capacity``.
        capacity: Mass Q of a row.
        rng: Orders the clients of a dissolved cluster.
    """
    whole, rest = np.divmod(masses, capacity)
    rows = int(rest.sum() // capacity)
    cluster = cut_by_mass(tree, rest, capacity)
    size = np.zeros(cluster.max() + 1, dtype=np.int64)
    np.add.at(size, cluster, rest)
    ranked = np.argsort(size, kind="stable")
    row_of = np.empty(len(size), dtype=np.int64)
    row_of[ranked] = np.arange(len(size)) - (len(size) - rows)  # Negative: dissolved, the smallest first.
    home = row_of[cluster]
    loose = np.lexsort((rng.random(len(home)), home))[: np.count_nonzero(home < 0)]
    source, filled, mass = _fill(rest[loose], capacity - size[ranked[len(size) - rows :]])
    kept = np.flatnonzero(home >= 0)
    alone = np.repeat(np.arange(len(masses)), whole)
    return _sorted(
        np.concatenate([home[kept], filled, np.arange(rows, rows + len(alone))]),
        np.concatenate([kept, loose[source], alone]),
        np.concatenate([rest[kept], mass, np.full(len(alone), capacity)]),
    )


def draw_clients(rows: Rows, capacity: int, rng: np.random.Generator) -> np.ndarray:
    """Draw one client from every row, independently; positions, int64 ``[m]``."""
    ends = np.cumsum(rows.mass)
    starts = np.arange(0, ends[-1], capacity)
    hits = starts + rng.integers(0, capacity, len(starts))
    return rows.client[np.searchsorted(ends, hits, side="right")]


def _fill(masses: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pour masses into gaps of the same total, both in order.

    Returns:
        For every piece: which of the masses it is of, which gap it went into, and its mass > 0.
    """
    poured, full = np.cumsum(masses), np.cumsum(gaps)
    ends = np.sort(np.concatenate([poured, full]), kind="stable")  # two sorted runs
    ends = ends[np.diff(ends, prepend=0) > 0]
    starts = np.concatenate([[0], ends])[:-1].astype(np.int64)
    source = np.searchsorted(poured, starts, side="right")
    return source, np.searchsorted(full, starts, side="right"), ends - starts


def _sorted(row: np.ndarray, client: np.ndarray, mass: np.ndarray) -> Rows:
    some = np.flatnonzero(mass)
    order = some[np.argsort(row[some], kind="stable")]
    return Rows(row[order], client[order], mass[order])
