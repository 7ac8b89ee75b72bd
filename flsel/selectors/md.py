"""Multinomial (MD) sampling, the sampling scheme of FedProx.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: "Federated Optimization in Heterogeneous
Networks", MLSys 2020, Algorithm 2; X. Li, K. Huang, W. Yang, S. Wang, Z. Zhang: "On the Convergence of
FedAvg on Non-IID Data", ICLR 2020, Scheme I.

**Deviations.** The shares p_k are those among the clients available now, so the draw is unbiased only if all
clients are available. The paper's proximal term is a local objective (``FedProx``).
"""

from __future__ import annotations

from typing import final

from flsel.selector import Plan, Selector, View
from flsel.selectors._sampling import shares


@final
class MD(Selector):
    """Draw K clients with replacement, with probability p_k; each draw weighs 1/K.

    A client drawn c times appears on c paths, so it weighs c/K in all: E[weight] = p_k.
    """

    only_synchronous = "its weights are unbiased only for joint draws from all clients"
    assumes_arrival = True
    equal_weights = True

    def select(self, view: View) -> Plan:
        """Draw clients of the pool with replacement, by data share."""
        return Plan.star(view.rng.choice(view.pool, view.clients_per_round, p=shares(view.pool_sizes)))
