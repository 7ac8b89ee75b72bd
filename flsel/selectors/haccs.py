"""HACCS: clusters of clients with similar labels, each represented by its fastest members.

J. Wolfrath, N. Sreekumar, D. Kumar, Y. Wang, A. Chandra: "HACCS: Heterogeneity-Aware Clustered Client
Selection for Accelerated Federated Learning", IPDPS 2022, with code of the authors' group.

**Deviations**:

- The paper's text was not available. The formulas are those of a summary of it and of the code.
- The paper compares label histograms by Hellinger's distance, which is the default, the code by the Euclidean
  distance of their shares: ``distance``. The default of ``eps`` is the code's and belongs to the Euclidean
  distance. With Hellinger's distance most clients are clusters of their own where labels differ: 50 clients
  with 100 examples of Dirichlet(1) labels are 33 to 40 clusters, by the Euclidean distance 7 to 15. Take a
  larger ``eps``, or ``distance: euclidean``.
- OPTICS with at least two members and a cut at ``eps`` joins all clients that are connected by distances of
  at most ``eps``, as DBSCAN does. flsel computes these groups directly. A client without a neighbour is a
  cluster.
- A client's loss is the last that it reported, of the model that it received. A client that never reported
  counts with the largest report, and with 1 before there is any report.
- A cluster's means are those of its members that are available now. The code divides their sums by all
  members.
- With ``rho`` 0, which needs no devices, members are taken in a random order instead of the fastest first.
- Noise is added to the histograms once, by a generator of the first round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.selector import Diagnostic, Need, Plan, Selector, Updates, View
from flsel.selectors._sampling import with_examples

Distance = Literal["hellinger", "euclidean"]


@final
@dataclass(eq=False)
class HACCS(Selector):
    """Draw clusters by their loss and latency, and take the fastest clients of each.

    Attributes:
        eps: Largest distance between neighbours in a cluster.
        rho: Weight of latency against loss (rho); 0 needs no devices.
        distance: Distance between the label shares of two clients.
        privacy: Budget of differential privacy (epsilon): Laplace noise of scale 1/epsilon on every count;
            null adds none.
    """

    eps: Annotated[float, Range(above=0), Tunable(0.05, 0.8)] = 0.25
    rho: Annotated[float, Range(0, 1), Tunable(0.0, 1.0)] = 0.5
    _: KW_ONLY
    distance: Distance = "hellinger"
    privacy: Annotated[float | None, Range(above=0)] = None

    @property
    def needs(self) -> Need:
        """Labels and losses, and durations where latency counts."""
        return Need.LABELS | Need.OWN_LOSS | (Need.DURATIONS if self.rho > 0 else Need.NONE)

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget clusters and losses."""
        self.cluster_ = torch.full((len(sizes),), -1, dtype=torch.int64)
        self.loss_ = torch.full((len(sizes),), math.nan, dtype=torch.float64)

    def select(self, view: View) -> Plan:
        """Share the cohort out to the clusters, first in whole parts, then by draws."""
        if bool((self.cluster_ < 0).all()):
            counts = view.labels.numpy().astype(np.float64)
            if self.privacy is not None:
                counts = (counts + view.rng.laplace(scale=1 / self.privacy, size=counts.shape)).clip(min=0)
            self.cluster_ = torch.from_numpy(clusters(counts, self.eps, self.distance))
        pool = view.rng.permutation(with_examples(view.pool, view.sizes))
        latency = np.zeros(len(pool))
        if self.rho > 0:
            latency = view.durations(pool.tolist()).numpy()
            order = np.argsort(latency, kind="stable")
            pool, latency = pool[order], latency[order]
        _, member = np.unique(self.cluster_.numpy()[pool], return_inverse=True)
        chance = preferences(member, self._known(pool), latency, self.rho)
        # Each cluster's first members; the pool is in the order in which they are taken.
        order, size = np.argsort(member, kind="stable"), np.bincount(member)
        rank = np.empty(len(pool), dtype=np.int64)
        rank[order] = np.arange(len(pool)) - np.repeat(np.cumsum(size) - size, size)
        sent = quotas(chance, size, min(view.clients_per_round, len(pool)), view.rng)
        return Plan.star(pool[rank < sent[member]])

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Store the participants' losses; a report that is not finite leaves the old one."""
        finite = updates.own_loss.isfinite()
        self.loss_ = self.loss_.index_put((updates.clients[finite],), updates.own_loss[finite])

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the clusters' numbers."""
        return [Diagnostic("cluster", "client", self.cluster_.numpy()[clients].astype(np.float64))]

    def _known(self, clients: np.ndarray) -> np.ndarray:
        """Return losses, the largest for clients that never reported one."""
        known = self.loss_[~self.loss_.isnan()]
        return np.asarray(self.loss_.nan_to_num(float(known.max()) if len(known) else 1.0).numpy()[clients])


def clusters(counts: np.ndarray, eps: float, distance: Distance) -> np.ndarray:
    """Number the clusters of clients that are connected by distances of at most ``eps``.

    Args:
        counts: Label counts, float64 ``[N, C]``, >= 0; a client without any is like one with equal shares.
        eps: Largest distance between neighbours.
        distance: Hellinger's or the Euclidean distance of shares.

    Returns:
        Int64 ``[N]``.
    """
    total = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, total, out=np.full_like(counts, 1 / counts.shape[1]), where=total > 0)
    points = np.sqrt(shares / 2) if distance == "hellinger" else shares
    # Clients with the same shares are one point: otherwise their pairs alone might not fit into memory.
    unique, place = np.unique(points, axis=0, return_inverse=True)
    pairs = cKDTree(unique).query_pairs(eps, output_type="ndarray")
    edges = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(unique), len(unique)))
    found: np.ndarray = connected_components(edges, directed=False)[1].astype(np.int64)[place.reshape(-1)]
    return found


def preferences(member: np.ndarray, losses: np.ndarray, latency: np.ndarray, rho: float) -> np.ndarray:
    """Return how likely each cluster is drawn, float64 ``[clusters]``, sum one.

    Args:
        member: Cluster of each available client, int64 ``[n]``, from 0 without gaps.
        losses: Loss of each, finite.
        latency: Seconds of each, >= 0.
        rho: Weight of the latency term 1 - mean latency / largest mean latency; that of the mean squared
            loss, over the sum of all clusters', is 1 - rho.
    """
    size = np.bincount(member)
    square, seconds = np.bincount(member, losses**2) / size, np.bincount(member, latency) / size
    fast = 1 - seconds / max(seconds.max(), 1e-300)
    found: np.ndarray = rho * fast + (1 - rho) * square / max(square.sum(), 1e-300)
    total: float = found.sum()
    return found / total if total > 0 else np.full(len(size), 1 / len(size))


def quotas(chance: np.ndarray, size: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return how many clients each cluster sends: the whole part of its share, and draws for the rest.

    Args:
        chance: How likely each cluster is, float64 ``[clusters]``, sum one.
        size: Clients that it has, >= 1.
        count: Clients to send in all, at most the sum of ``size``.
        rng: Source of the draws.
    """
    sent: np.ndarray = np.minimum(np.floor(chance * count + 1e-9).astype(np.int64), size)
    while sent.sum() < count:
        left = np.where(sent < size, chance, 0.0)
        if left.sum() <= 0:
            left = (sent < size).astype(np.float64)
        sent[rng.choice(len(chance), p=left / left.sum())] += 1
    return sent
