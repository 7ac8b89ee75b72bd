"""Sampling by data share without replacement, the "random" baseline of HiCS-FL's code.

H. Chen, H. Vikalo: "Heterogeneity-Guided Client Sampling: Towards Fast and Efficient Non-IID Federated
Learning", NeurIPS 2024, reference code.

**Deviations.** The shares p_k are those among the clients available now. Clients without examples are drawn
only if no available client has any. The scheme favours clients with little data: the probability to be in the
cohort grows more slowly than p_k, and every update has the same weight. :class:`~flsel.selectors.md.MD` is
the unbiased alternative.
"""

from __future__ import annotations

from typing import final

from flsel.selector import Plan, Selector, View
from flsel.selectors._sampling import log_shares, successive


@final
class Weighted(Selector):
    """Draw distinct clients one after another, each with probability proportional to its data.

    Also called successive sampling or the Plackett-Luce draw; every update weighs 1/K.
    """

    equal_weights = True

    def select(self, view: View) -> Plan:
        """Draw distinct clients of the pool by data share."""
        return Plan.star(view.pool[successive(log_shares(view.pool_sizes), view.clients_per_round, view.rng)])
