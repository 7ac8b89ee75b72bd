"""HiCS-FL: hierarchical clustered sampling by label heterogeneity, estimated from output-layer updates.

H. Chen, H. Vikalo: "Accelerating Non-IID Federated Learning via Heterogeneity-Guided Client Sampling",
arXiv:2310.00198, Algorithm 1 with Eqs. 7 (entropy), 9 (distance) and 10 (probabilities).

**Deviations**:

- Ward's method takes the rows of the distance matrix as points, as in the published code. The paper does not
  say this. ``linkage="condensed"`` takes the matrix as the distances. The paper's lambda is 1 / (1 + lambda')
  for the code's lambda'.
- T has the units of the updates, so the default ``temperature="auto"`` scales it to them. The paper sets
  0.0025 or 0.0015. ``temperature_per_client`` and ``fade`` are not in the paper.
- The code estimates entropies from the row means of the weight update, and angles from the whole layer:
  ``signal="layer"``. With ``"weight_mean"`` both use the row means. With ``"bias"`` (the paper) both use the
  bias.
- ``clustered_from_variance`` (0.1 in the code), ``keep_first_update`` and ``warm_up_by_id`` are in the code
  and not in the paper, and off by default. The code's uniform draws inside a cluster are not implemented.
- The first ceil(N/K) rounds take new clients only. If too few new clients are available, others fill up the
  cohort. A client whose update was lost belongs to an extra cluster of such clients, which has the largest
  mean entropy.
- Clusters are built from all measured clients. The probability pi_m of cluster G_m goes to its available
  clients.
- Between a zero update and another the angle is pi/2 (0 in the code).
- More than 2,000 measured clients are clustered by a random sample of them, in O(N).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.errors import UserError
from flsel.selector import Diagnostic, Need, Plan, Selector, Updates, View
from flsel.selectors._hics import (
    Signal,
    annealed,
    auto_temperature,
    check_signal,
    client_distances,
    client_temperatures,
    entropy,
    group,
    layer_of,
    log_weights,
    mean_entropies,
    signal_of,
)
from flsel.selectors._sampling import fill_up, successive, with_examples
from flsel.selectors._sketch import EXACT
from flsel.selectors._strata import by_tree, draw_clients, shares_of
from flsel.selectors._ward import Linkage, ward


@final
@dataclass(eq=False)
class HiCS(Selector):
    """Prefer clusters of clients with balanced labels, less and less as training goes on.

    With two classes the angles between clients are 0 or pi, and do not distinguish them.

    Attributes:
        temperature: Temperature (T) of the estimated entropies, in the units of the signal; ``auto`` is tau
            times the median over the clients of largest minus mean entry.
        lam: Weight of the angle against the difference of entropies (lambda).
        gamma0: Preference for balanced clusters at the start (gamma^0); 0 makes all clusters equal.
        num_clusters: Clusters (M); null means K.
        signal: Signal of the output layer (v): ``bias`` its bias update, ``weight_mean`` the row means of its
            weight update (also for models without bias), ``layer`` the row means for the entropies and the
            whole layer for the angles.
        linkage: Ward's method on the ``rows`` of the distance matrix or on the ``condensed`` matrix.
        temperature_per_client: Give every client a temperature of its own, tau times its largest minus its
            mean entry (T_k), so that the length of an update does not matter.
        tau: Factor of the scaled temperatures (tau): that of ``auto``, and those of
            ``temperature_per_client``.
        keep_first_update: Keep each client's first update, that of the warm-up, and never replace it.
        clustered_from_variance: If the variance of the estimated entropies (nats^2) is at least this, the
            clients of a round are drawn by Clustered Sampling, Algorithm 2, on the tree of the same
            distances; null means never.
        warm_up_by_id: Take new clients in the order of their ids instead of a random order.
        fade: Share of the rounds after which the preference for balanced clusters is gone; 1 in the paper.
    """

    only_synchronous = "it clusters updates that start from one model"
    needs = Need.HEAD
    equal_weights = True
    temperature: Annotated[float | Literal["auto"], Range(above=0), Tunable(1e-4, 1e-1, log=True)] = "auto"
    lam: Annotated[float, Range(0, 1), Tunable(0.0, 1.0)] = 0.1
    gamma0: Annotated[float, Range(0), Tunable(0.0, 8.0)] = 4.0
    num_clusters: Annotated[int | None, Range(1)] = None
    signal: Signal = "bias"
    linkage: Linkage = "rows"
    _: KW_ONLY
    temperature_per_client: bool = False
    tau: Annotated[float, Range(above=0)] = 0.25
    keep_first_update: bool = False
    clustered_from_variance: Annotated[float | None, Range(0)] = None
    warm_up_by_id: bool = False
    fade: Annotated[float, Range(high=1, above=0)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature_per_client and self.temperature != "auto":
            raise UserError(
                f"temperature must be auto where every client has its own (temperature_per_client), got "
                f"{self.temperature}."
            )

    def check_output_layer(self, *, has_bias: bool) -> None:
        """Refuse ``signal="bias"`` where no bias trains."""
        check_signal(self.signal, has_bias=has_bias)

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all updates.

        Raises:
            UserError: If there are more clients than Clustered Sampling's tree is built for.
        """
        if self.clustered_from_variance is not None and len(sizes) > EXACT:
            raise UserError(
                f"clustered_from_variance must be null for more than {EXACT} clients, got "
                f"{self.clustered_from_variance} and {len(sizes)}."
            )
        # Rounds drawn by Clustered Sampling so far.
        self.clustered_ = torch.zeros((), dtype=torch.int64)
        self.signal_ = torch.zeros((len(sizes), num_classes), dtype=torch.float64)
        self.layer_ = torch.zeros((len(sizes), 0), dtype=torch.float64)
        self.asked_ = torch.zeros(len(sizes), dtype=torch.bool)
        self.measured_ = torch.zeros(len(sizes), dtype=torch.bool)

    def select(self, view: View) -> Plan:
        """Take clients never asked before first, then follow Algorithm 1."""
        sizes = view.sizes.numpy()
        able = view.pool[sizes[view.pool] > 0]
        asked = self.asked_.numpy()[able]
        new = np.count_nonzero(~self.asked_.numpy() & (sizes > 0))
        order = able[~asked] if self.warm_up_by_id else view.rng.permutation(able[~asked])
        first = order[: view.clients_per_round]
        self.asked_ = self.asked_.index_fill(0, torch.from_numpy(first), True)
        warming_up = view.round < math.ceil(np.count_nonzero(sizes) / view.clients_per_round)
        # Fewer than K only if no new client is left: unavailable clients must leave no place empty.
        if len(first) and warming_up and len(first) == min(new, view.clients_per_round):
            return Plan.star(first)
        drawn = self._draw(view, able[asked], view.clients_per_round - len(first))
        others = with_examples(view.pool, view.sizes)
        return Plan.star(fill_up(np.concatenate([first, drawn]), others, view.clients_per_round, view.rng))

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Store the participants' updates of the output layer; non-finite ones leave the old."""
        signal, layer = signal_of(updates.head, self.signal), layer_of(updates.head)
        finite = layer.square().sum(dim=1).isfinite()
        if self.keep_first_update:
            finite &= ~self.measured_[updates.clients]
        clients = updates.clients[finite]
        if self.signal == "layer":
            known = (
                self.layer_ if self.layer_.shape[1] else layer.new_zeros((len(self.layer_), layer.shape[1]))
            )
            self.layer_ = known.index_put((clients,), layer[finite])
        self.signal_ = self.signal_.index_put((clients,), signal[finite])
        self.measured_ = self.measured_.index_fill(0, clients, True)

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the estimated entropies; NaN for clients that were never measured."""
        measured = np.flatnonzero(self.measured_.numpy())
        estimated = np.full(len(self.measured_), math.nan)
        if len(measured):
            estimated[measured] = self._entropies(measured)
        return [Diagnostic("estimated label entropy", "entropy", estimated[clients], "nats")]

    def _draw(self, view: View, candidates: np.ndarray, count: int) -> np.ndarray:
        """Draw ``count`` of the candidates, asked before and with examples: by Eq. 10, or one per stratum."""
        if count == 0 or len(candidates) == 0:
            return candidates[:0]
        sizes = view.sizes.numpy()
        measured = np.flatnonzero(self.measured_.numpy() & (sizes > 0))
        entropies = self._entropies(measured)
        if self.clustered_from_variance is not None and len(measured):
            here = np.isin(measured, candidates)
            if entropies.var() >= self.clustered_from_variance and here.any():
                self.clustered_ = self.clustered_ + 1
                return self._draw_strata(view, measured[here], entropies[here], count)
        labels, means = self._clusters(measured, entropies, view)
        cluster = np.full(len(sizes), len(means) - 1)
        cluster[measured] = labels
        gamma = annealed(self.gamma0, view.round, view.rounds, self.fade)
        weights = log_weights(means, cluster[candidates], sizes[candidates], gamma)
        drawn: np.ndarray = candidates[successive(weights, count, view.rng)]
        return drawn

    def _draw_strata(self, view: View, clients: np.ndarray, entropies: np.ndarray, count: int) -> np.ndarray:
        """Draw one of the measured clients from each of ``count`` strata; one may come from several."""
        pool = shares_of(clients, view.sizes.numpy()[clients], count)
        tree = ward(client_distances(self._direction(clients), entropies, self.lam), self.linkage)
        rows = by_tree(tree, pool.masses, pool.capacity, view.rng)
        drawn: np.ndarray = clients[draw_clients(rows, pool.capacity, view.rng)]
        return drawn

    def _entropies(self, measured: np.ndarray) -> np.ndarray:
        """Estimate the entropies of measured clients, float64 ``[n]``."""
        signal = self.signal_.numpy()[measured]
        if self.temperature_per_client:
            return entropy(signal, client_temperatures(signal, self.tau))
        if isinstance(self.temperature, str):
            return entropy(signal, auto_temperature(signal, self.tau))
        return entropy(signal, self.temperature)

    def _direction(self, clients: np.ndarray) -> np.ndarray:
        """Return what measured clients' angles are taken between, float64 ``[n, d]``."""
        rows: np.ndarray = (self.layer_ if self.signal == "layer" else self.signal_).numpy()[clients]
        return rows

    def _clusters(
        self, measured: np.ndarray, entropies: np.ndarray, view: View
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the clusters of the measured clients and the mean entropy of each, and of the unmeasured."""
        if len(measured) == 0:
            return measured, np.zeros(1)
        labels = group(
            self._direction(measured),
            entropies,
            lam=self.lam,
            count=self.num_clusters or view.clients_per_round,
            linkage=self.linkage,
            rng=view.rng,
        )
        means = mean_entropies(entropies, labels)
        return labels, np.append(means, means.max())
