"""F3AST: choose the available clients that took part least for their share of the data, without bias.

M. Ribero, H. Vikalo, G. de Veciana: "Federated Learning Under Intermittent Client Availability and
Time-Varying Communication Constraints", IEEE Journal of Selected Topics in Signal Processing 2023
(arXiv:2205.06730), Algorithm 1.

**Deviations**:

- Neither the authors' code nor the paper's text was available. The formulas are those of a summary of the
  paper, checked against a public implementation. In that implementation the rate counts how often a client is
  available. Here, as in the summary, it counts how often it takes part.
- The rate starts at K/N. An update is weighted with the rate after its own round, so that no weight is above
  p_i / beta. This order is ours.
- The weights of a round need not sum to one.
- A client that was asked counts as a participant, whether or not its update arrives. Ties are broken at
  random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.selector import Diagnostic, Plan, Selector, Updates, View
from flsel.selectors._sampling import largest, shares, with_examples


@final
@dataclass(eq=False)
class F3AST(Selector):
    """Take the K available clients with the largest p_i / r_i, and weigh their updates by it.

    p_i is client i's share of all examples and r_i the rate at which it takes part.

    Attributes:
        beta: Share of the present round in the rate (beta), a moving average over about 1 / beta rounds.
    """

    only_synchronous = "its rates count joint cohorts, whose weights they make unbiased"
    beta: Annotated[float, Range(above=0, below=1), Tunable(1e-4, 0.1, log=True)] = 0.001

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all rates."""
        self.rate_ = torch.zeros(len(sizes), dtype=torch.float64)  # Zero: no round has begun.

    def select(self, view: View) -> Plan:
        """Choose by the rates so far, then count the cohort into them."""
        pool = with_examples(view.pool, view.sizes)
        rate = self.rate_
        if not rate.any():
            rate = torch.full_like(rate, view.clients_per_round / len(rate))
        index = shares(view.sizes.numpy())[pool] / rate.numpy()[pool]
        chosen = pool[largest(index, view.clients_per_round, view.rng)]
        self.rate_ = (1.0 - self.beta) * rate
        self.rate_[torch.from_numpy(chosen)] += self.beta
        return Plan.star(chosen)

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh every update by p_i / r_i."""
        share = torch.from_numpy(shares(view.sizes.numpy()))
        return share[updates.clients] / self.rate_[updates.clients]

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the rates of taking part."""
        return [Diagnostic("rate of taking part", "client", self.rate_.numpy()[clients])]
