"""Uniform client sampling, the baseline of every paper.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agueera y Arcas: "Communication-Efficient Learning of
Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.

**Deviations.** Clients are drawn from those available now instead of from all clients. The paper weighs by
``n_k / n``, with n over all clients in Algorithm 1 and over the cohort in later versions. ``weights`` has
both, and two more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor

from flsel.selector import Plan, Selector, Updates, View
from flsel.selectors._sampling import equal_weights, with_examples

Weights = Literal["size", "equal", "partial", "scaled"]


@final
@dataclass(eq=False)
class Uniform(Selector):
    """Draw distinct clients uniformly.

    Attributes:
        weights: Weight of a client with a share p_k of all N clients' examples in a cohort S of K: ``size``
            p_k / sum over S of p; ``equal`` 1/K; ``partial`` p_k, where the old model keeps the rest;
            ``scaled`` N p_k / K, with N the clients with examples. ``scaled`` is unbiased if all clients are
            available, but the weights of a round need not sum to one.
    """

    draws_uniformly = True
    weights: Weights = "size"

    @property
    def assumes_arrival(self) -> bool:
        """Whether the weights are unbiased only if all chosen clients' updates arrive."""
        return self.weights in ("partial", "scaled")

    def select(self, view: View) -> Plan:
        """Draw distinct clients with examples from the pool, each with the same chance."""
        pool = with_examples(view.pool, view.sizes)
        return Plan.star(view.rng.choice(pool, min(view.clients_per_round, len(pool)), replace=False))

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh as the argument ``weights`` says, float64 ``[K]``."""
        if self.weights == "equal":
            return equal_weights(len(updates.plan))
        share = updates.sizes.double() / max(int(view.sizes.sum()), 1)
        if self.weights == "partial":
            return share
        if self.weights == "scaled":
            return share * (int(view.sizes.count_nonzero()) / len(updates.plan))
        total = share.sum()
        return share / total if total > 0 else equal_weights(len(updates.plan))
