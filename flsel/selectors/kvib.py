"""K-Vib: learn from the norms of participants' updates which clients to include, without bias.

D. Zeng, Z. Xu, Y. Pan, X. Luo, Q. Wang, X. Tang: "Enhanced Federated Optimization: Adaptive Unbiased Client
Sampling with Reduced Variance", TMLR 2025 (arXiv:2310.02698), Algorithm 1, with the authors' code.

**Deviations**:

- The paper's text was not available. The formulas are those of a summary of it and of the code.
- The code draws each client independently, so that cohorts have K clients on average. Here a systematic
  sample in a random order has the same inclusion probabilities and K clients in every round.
- The probabilities with the smallest variance are proportional to the square root of the cumulated feedback
  plus gamma N / (theta K). The code leaves the root out.
- ``gamma: auto`` is the mean squared feedback of the first cohort.
- Probabilities and shares are those of the clients available now that have examples. Feedback uses shares of
  all examples. An update that is lost or not finite gives no feedback. Where m of n clients arrive, each
  counts n / m times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.params import squared_norms
from flsel.selector import Diagnostic, Need, Plan, Selector, Updates, View
from flsel.selectors._inclusion import optimal_inclusion, systematic
from flsel.selectors._sampling import shares, with_examples


@final
@dataclass(eq=False)
class KVib(Selector):
    """Include client i with probability p_i, which grows with the updates it has sent, and weigh by 1/p_i.

    Attributes:
        gamma: Regularisation of the feedback (gamma), in squared norms; ``auto`` measures it.
        theta: Share of uniform sampling in the probabilities (theta); ``auto`` is (N / (T K))^(1/3) for T
            rounds, at most 1.
    """

    only_synchronous = "its chances are those of a cohort that is drawn and comes back together"
    assumes_arrival = True
    needs = Need.DELTAS
    gamma: Annotated[float | Literal["auto"], Range(above=0)] = "auto"
    theta: Annotated[float | Literal["auto"], Range(above=0, high=1), Tunable(0.05, 1.0)] = "auto"

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all feedback."""
        self.feedback_ = torch.zeros(len(sizes), dtype=torch.float64)
        # All clients' probabilities in the present round.
        self.chance_ = torch.zeros(len(sizes), dtype=torch.float64)
        self.gamma_ = 1.0 if self.gamma == "auto" else self.gamma

    def select(self, view: View) -> Plan:
        """Draw K clients by their inclusion probabilities."""
        pool = with_examples(view.pool, view.sizes)
        count, clients = min(view.clients_per_round, len(pool)), len(view.sizes)
        usual = min((clients / (view.rounds * view.clients_per_round)) ** (1 / 3), 1.0)
        theta: float = usual if self.theta == "auto" else self.theta
        cumulated = self.feedback_.numpy()[pool] + self.gamma_ * clients / (theta * view.clients_per_round)
        chance = (1 - theta) * optimal_inclusion(np.sqrt(cumulated), count) + theta * count / len(pool)
        self.chance_ = torch.zeros(clients, dtype=torch.float64)
        self.chance_[torch.from_numpy(pool)] = torch.from_numpy(chance)
        return Plan.star(pool[systematic(chance, view.rng)])

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh each client by its share among the candidates, divided by its inclusion probability."""
        able = view.sizes * (self.chance_ > 0)
        return updates.passed_on(torch.from_numpy(shares(able.numpy())) / self.chance_)

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Add the squared weighted norms of the updates, over their probabilities."""
        share = shares(view.sizes.numpy())[updates.clients.numpy()]
        squares = torch.from_numpy(share**2 * squared_norms(updates.deltas))
        finite = squares.isfinite()
        clients, squares = updates.clients[finite], squares[finite]
        if self.gamma == "auto" and not self.feedback_.any() and squares.any():
            self.gamma_ = float(squares.mean())
        grown = squares / self.chance_[clients]
        self.feedback_ = self.feedback_.index_add(0, clients, grown)

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the probabilities of the last round."""
        return [Diagnostic("probability", "client", self.chance_.numpy()[clients])]
