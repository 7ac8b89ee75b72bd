"""F3AST: choose the available clients that took part least for their share of the data, without bias.

M. Ribero, H. Vikalo, G. de Veciana: "Federated Learning Under Intermittent Client Availability and
Time-Varying Communication Constraints", IEEE Journal of Selected Topics in Signal Processing 2023
(arXiv:2205.06730), Algorithm 1.

**Deviations**:

- The paper's text was not available. The formulas are those of a summary of it and of the authors' code
  (github.com/mriberodiaz/f3ast).
- The rate starts at min(1, K p_i), at which all clients with K p_i below one rank alike. The code starts it
  at p_i, and divides weights by K. Its default of beta is 0.01, its example has 0.001, as here.
- An update is weighted with the rate after its own round, as in the code. So no weight is above p_i / beta.
  The weights of a round need not sum to one.
- A client that was asked counts as a participant, whether or not its update arrives. Clients
  that never arrive would fill the cohorts otherwise. Where m of n arrive, each counts n / m times. Ties are
  broken at random.
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

    assumes_arrival = True
    only_synchronous = "its rates count joint cohorts, whose weights they make unbiased"
    beta: Annotated[float, Range(above=0, below=1), Tunable(1e-4, 0.1, log=True)] = 0.001

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all rates."""
        self.rate_ = torch.zeros(len(sizes), dtype=torch.float64)  # Zero: no round has begun.

    def select(self, view: View) -> Plan:
        """Choose by the rates so far, then count the cohort into them."""
        pool = with_examples(view.pool, view.sizes)
        share, rate = shares(view.sizes.numpy()), self.rate_
        if not rate.any():
            rate = torch.from_numpy((view.clients_per_round * share).clip(max=1.0))
        index = _ratio(share, rate.numpy())[pool]
        chosen = pool[largest(index, view.clients_per_round, view.rng)]
        self.rate_ = (1.0 - self.beta) * rate
        self.rate_[torch.from_numpy(chosen)] += self.beta
        return Plan.star(chosen)

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh every update by p_i / r_i."""
        ratio = _ratio(shares(view.sizes.numpy()), self.rate_.numpy())
        return updates.passed_on(torch.from_numpy(ratio))

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the rates of taking part."""
        return [Diagnostic("rate of taking part", "client", self.rate_.numpy()[clients])]


def _ratio(share: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Return p_i / r_i, zero for a client without examples."""
    ratio: np.ndarray = np.divide(share, rate, out=np.zeros(len(share)), where=share > 0)
    return ratio
