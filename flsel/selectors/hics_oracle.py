"""HiCS-FL with the true label entropies: the bound on what a better estimate could gain.

H. Chen, H. Vikalo: "Accelerating Non-IID Federated Learning via Heterogeneity-Guided Client Sampling",
arXiv:2310.00198; the variant is that of the authors' published code, not of the paper.

**Deviations**:

- Entropies are those of the clients' label counts, so there is no warm-up and no temperature. Angles are
  between updates. A client that never took part has the update zero. The angle between two zero updates is 0,
  and between a zero update and another pi/2 (0 in the code).
- The code fixes M = 5. Here M is K by default, as in the paper's HiCS-FL.
- All else is as in :mod:`flsel.selectors.hics`: Ward on rows, draws by data share inside a cluster among the
  available clients, and a sample in place of the matrix for more than 2,000 clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.selector import Need, Plan, Selector, Updates, View
from flsel.selectors._hics import (
    annealed,
    check_signal,
    group,
    label_entropy,
    log_weights,
    mean_entropies,
    signal_of,
)
from flsel.selectors._sampling import fill_up, successive, with_examples
from flsel.selectors._ward import Linkage


@final
@dataclass(eq=False)
class HiCSOracle(Selector):
    """Prefer clusters of clients whose true labels are balanced.

    Attributes:
        lam: Weight of the angle against the difference of entropies (lambda).
        gamma0: Preference for balanced clusters at the start (gamma^0); 0 makes all clusters equal.
        num_clusters: Clusters (M); null means K.
        signal: Update whose angles are compared (v): the output layer's ``bias`` update, or the row means of
            its weight update, ``weight_mean``.
        linkage: Ward's method on the ``rows`` of the distance matrix or on the ``condensed`` matrix.
    """

    only_synchronous = "it clusters updates that start from one model"
    needs = Need.LABELS | Need.HEAD
    equal_weights = True
    lam: Annotated[float, Range(0, 1), Tunable(0.0, 1.0)] = 0.1
    gamma0: Annotated[float, Range(0), Tunable(0.0, 8.0)] = 4.0
    num_clusters: Annotated[int | None, Range(1)] = None
    signal: Literal["bias", "weight_mean"] = "bias"
    linkage: Linkage = "rows"

    def check_output_layer(self, *, has_bias: bool) -> None:
        """Refuse ``signal="bias"`` where no bias trains."""
        check_signal(self.signal, has_bias=has_bias)

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all updates."""
        self.signal_ = torch.zeros((len(sizes), num_classes), dtype=torch.float64)

    def select(self, view: View) -> Plan:
        """Cluster the clients that have examples and draw by Eq. 10 of the paper."""
        sizes = view.sizes.numpy()
        able = np.flatnonzero(sizes)
        labels, means = self._clusters(able, view)
        free = view.available.numpy()[able]
        gamma = annealed(self.gamma0, view.round, view.rounds)
        weights = log_weights(means, labels[free], sizes[able[free]], gamma)
        drawn = able[free][successive(weights, view.clients_per_round, view.rng)]
        return Plan.star(
            fill_up(drawn, with_examples(view.pool, view.sizes), view.clients_per_round, view.rng)
        )

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Store the participants' updates of the output layer; non-finite ones leave the old."""
        signal = signal_of(updates.head, self.signal)
        finite = signal.square().sum(dim=1).isfinite()
        self.signal_ = self.signal_.index_put((updates.clients[finite],), signal[finite])

    def _clusters(self, able: np.ndarray, view: View) -> tuple[np.ndarray, np.ndarray]:
        """Return the clusters of the clients with examples and the mean entropy of each."""
        if len(able) == 0:
            return able, np.zeros(1)
        entropies = label_entropy(view.labels.numpy()[able])
        labels = group(
            self.signal_.numpy()[able],
            entropies,
            lam=self.lam,
            count=self.num_clusters or view.clients_per_round,
            linkage=self.linkage,
            rng=view.rng,
        )
        return labels, mean_entropies(entropies, labels)
