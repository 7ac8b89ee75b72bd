"""Clustered Sampling by data size: one draw from each of m strata that hold equally many examples.

Y. Fraboni, R. Vidal, L. Kameni, M. Lorenzi: "Clustered Sampling: Low-Variance and Improved Representativity
for Clients Selection in Federated Learning", ICML 2021 (arXiv:2105.05883), Algorithm 1.

**Deviations.** Rows are built in exact integers. The published code rounds to 1e-10 and fails, for example,
for ten equal clients and m = 3. Clients of equal size are ordered by id. Rows are those of the clients
available now, so the draw is unbiased for their shares. m is at most the number of available clients that
have examples.
"""

from __future__ import annotations

from typing import final

from flsel.selector import Plan, Selector, View
from flsel.selectors._strata import by_size, draw_clients, shares_of


@final
class ClusteredSamplingBySize(Selector):
    """Draw client i with probability r_ki for each row k of R; each draw weighs 1/m, so E[weight] = p_i.

    A client can come from several rows; it then appears on as many paths and trains once. The variance of
    its weight is at most that of multinomial sampling.
    """

    only_synchronous = "its weights are unbiased only for joint draws from all clients"
    assumes_arrival = True
    equal_weights = True

    def select(self, view: View) -> Plan:
        """Draw one client from every row."""
        shares = shares_of(view.pool, view.pool_sizes, view.clients_per_round)
        rows = by_size(shares.masses, shares.capacity)
        return Plan.star(shares.clients[draw_clients(rows, shares.capacity, view.rng)])
