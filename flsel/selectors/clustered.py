"""Clustered Sampling by similarity: one draw from each of m strata of clients with similar updates.

Y. Fraboni, R. Vidal, L. Kameni, M. Lorenzi: "Clustered Sampling: Low-Variance and Improved Representativity
for Clients Selection in Federated Learning", ICML 2021 (arXiv:2105.05883), Algorithm 2.

**Deviations**:

- Rows are built in exact integers. A client with p_i > 1/m first gets floor(m p_i) rows of its own. For such
  a client the published code is biased. Rows are those of the clients available now, and m is at most their
  number.
- As in the published code, Ward's method takes the rows of the distance matrix as points, and ``"L2"`` is the
  sum of squares without a root. A client that never took part has the update zero and the angle 0 to all
  clients. In the published code angles can be NaN, here they cannot.
- While all distances are zero, as in the first round, the rows are Algorithm 1's.
- ``warm_up`` rounds of multinomial sampling come first in the code of HiCS-FL (10), and not in the paper (0).
- For more than 2,000 clients, or with ``sketch``, a count sketch of each update is kept. Its inner products
  are right up to 1 / sqrt(length).
- For more than 2,000 clients the tree is built from a random sample. Clients fill the rows in the order of
  the tree's leaves, each at its most similar leaf. The sums are exact, in O(N) instead of O(N^3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.params import flatten
from flsel.selector import Need, Plan, Selector, Updates, View
from flsel.selectors._pairwise import squared_lengths
from flsel.selectors._sampling import shares
from flsel.selectors._similarity import Similarity, dissimilarities, leaf_order
from flsel.selectors._sketch import EXACT, sketch_length, sketched
from flsel.selectors._strata import Rows, Shares, by_size, by_tree, draw_clients, pour, shares_of
from flsel.selectors._ward import ward


@final
@dataclass(eq=False)
class ClusteredSampling(Selector):
    """Draw one client from each row of R; each draw weighs 1/m, so E[weight of client i] = p_i.

    A client can come from several rows; it then appears on as many paths and trains once. Keeps one update
    per client: N |theta| numbers, in the models' precision, and N^2 distances in float64.

    Attributes:
        similarity: ``cosine`` (the angle), ``L1`` (sum of absolute differences) or ``L2`` (sum of squares).
            With sketches only ``cosine`` and ``L2`` are possible.
        warm_up: Rounds of multinomial sampling at the start.
        sketch: Numbers kept of an update; null keeps it whole up to 2,000 clients and 256 numbers beyond.
    """

    only_synchronous = (
        "it clusters updates that start from one model, and its weights are those of joint draws"
    )
    assumes_arrival = True
    needs = Need.DELTAS
    equal_weights = True
    similarity: Similarity = "cosine"
    warm_up: Annotated[int, Range(0)] = 0
    sketch: Annotated[int | None, Range(1)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sketch is not None and self.similarity == "L1":
            raise UserError("similarity must be cosine or L2 where updates are sketched, got L1.")

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all updates.

        Raises:
            UserError: If the similarity is L1 and there are more clients than it is computed for.
        """
        if len(sizes) > EXACT and self.similarity == "L1":
            raise UserError(
                f"similarity must be cosine or L2 for more than {EXACT} clients, got L1 and {len(sizes)}."
            )
        compared = len(sizes) if len(sizes) <= EXACT else 0
        self.rows_ = torch.zeros((len(sizes), 0))
        self.square_ = torch.zeros(len(sizes), dtype=torch.float64)
        self.distance_ = torch.zeros((compared, compared), dtype=torch.float64)

    def select(self, view: View) -> Plan:
        """Build R from the updates known and draw one client from every row."""
        if view.round < self.warm_up:
            return Plan.star(view.rng.choice(view.pool, view.clients_per_round, p=shares(view.pool_sizes)))
        pool = shares_of(view.pool, view.pool_sizes, view.clients_per_round)
        return Plan.star(pool.clients[draw_clients(self._rows(pool, view.rng), pool.capacity, view.rng)])

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Replace the participants' updates and their distances to all; skip non-finite updates."""
        stack = flatten(updates.deltas).numpy()
        length = sketch_length(len(self.rows_), self.sketch)
        if length is not None:
            stack = sketched(stack, length)
        squares = squared_lengths(stack)
        finite = np.flatnonzero(np.isfinite(squares))
        clients, first = np.unique(updates.clients.numpy()[finite], return_index=True)
        if len(clients):
            self._store(clients, stack[finite[first]], squares[finite[first]])

    def _store(self, clients: np.ndarray, fresh: np.ndarray, squares: np.ndarray) -> None:
        """Replace what is kept of distinct clients by ``fresh``, ``[n, d]``, and their distances."""
        if self.rows_.shape[1] == 0:
            self.rows_ = torch.from_numpy(np.zeros((len(self.rows_), fresh.shape[1]), fresh.dtype))
        # In place, like the distances: these two are large.
        rows, square, distance = self.rows_.numpy(), self.square_.numpy(), self.distance_.numpy()
        rows[clients], square[clients] = fresh, squares
        if len(distance):
            new = dissimilarities(fresh, rows, self.similarity, (square[clients], square))
            distance[clients] = new
            distance[:, clients] = new.T

    def _rows(self, pool: Shares, rng: np.random.Generator) -> Rows:
        """Build R for the pool."""
        if len(self.distance_):
            between = self.distance_.numpy()[np.ix_(pool.clients, pool.clients)]
            if between.any():
                return by_tree(ward(between), pool.masses, pool.capacity, rng)
        elif self.rows_.shape[1]:
            some = slice(None) if len(pool.clients) == len(self.rows_) else pool.clients
            order = leaf_order(self.rows_.numpy()[some], self.square_.numpy()[some], self.similarity, rng)
            return pour(order, pool.masses, pool.capacity)
        return by_size(pool.masses, pool.capacity)
