"""UCB-CS: a discounted bandit on the losses that participants report, without asking other clients.

Y. J. Cho, S. Gupta, G. Joshi, O. Yagan: "Bandit-based Communication-Efficient Client Selection Strategies for
Federated Learning", Asilomar 2020 (arXiv:2012.08009), Algorithm 1.

**Deviations**:

- Neither the authors' code nor the paper's text was available. The index was taken from a summary of the
  paper and checked against a public implementation.
- A participant reports the loss of the model that it received, as in AFL. The paper averages the losses over
  its local steps. So the largest standard deviation of losses within a client is unknown. ``sigma: auto``
  takes the standard deviation between the losses that the last round's participants reported. If only one
  client reported, it keeps the value before.
- Clients that never took part come first, drawn uniformly. Ties are broken at random. Clients without
  examples are chosen only if no other client is available.
- A report that is lost or not finite leaves the mean loss unchanged (zero if there was none), and counts as a
  participation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.selector import Diagnostic, Need, Plan, Selector, Updates, View
from flsel.selectors._sampling import largest, shares, with_examples

_FEWEST = 1e-200  # Keeps the discounted count of a client above zero, however long ago it took part.


@final
@dataclass(eq=False)
class UCBCS(Selector):
    """Choose the clients with the largest index: p_k times (mean loss + width of its confidence interval).

    Attributes:
        gamma: Discount of a round against the next (gamma); 1 forgets nothing.
        sigma: Standard deviation of losses (sigma_t), in nats, which widens the intervals; ``auto`` measures
            it, 0 explores clients that never took part and no others.
    """

    only_synchronous = "its discount counts joint cohorts"
    needs = Need.OWN_LOSS
    equal_weights = True
    gamma: Annotated[float, Range(0, 1), Tunable(0.5, 1.0)] = 0.7
    sigma: Annotated[float | Literal["auto"], Range(0), Tunable(1e-2, 10.0, log=True)] = "auto"

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all losses."""
        self.mean_ = torch.zeros(len(sizes), dtype=torch.float64)
        self.count_ = torch.zeros(len(sizes), dtype=torch.float64)
        self.time_ = 0.0
        self.sigma_ = 0.0

    def select(self, view: View) -> Plan:
        """Take the clients with the largest indices and count their participation."""
        pool = with_examples(view.pool, view.sizes)
        index = self._index(shares(view.sizes.numpy()))
        chosen = pool[largest(index[pool], view.clients_per_round, view.rng)]
        known = self.count_ > 0
        self.count_ = torch.where(known, (self.gamma * self.count_).clamp(min=_FEWEST), 0.0)
        # Here and not in observe: a client that was asked took part, whether or not its update arrives.
        self.count_ = self.count_.index_add(0, torch.from_numpy(chosen), torch.ones(len(chosen)).double())
        self.time_ = self.gamma * self.time_ + 1.0
        return Plan.star(chosen)

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Add the participants' losses to their discounted means."""
        finite = updates.own_loss.isfinite()
        clients, loss = updates.clients[finite], updates.own_loss[finite]
        mean = self.mean_[clients]
        self.mean_ = self.mean_.index_put((clients,), mean + (loss - mean) / self.count_[clients])
        if self.sigma != "auto":
            self.sigma_ = self.sigma
        elif len(loss) > 1:
            self.sigma_ = float(loss.std(correction=0).nan_to_num(0.0, 0.0))

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the mean discounted losses."""
        return [Diagnostic("discounted loss", "client", self.mean_.numpy()[clients], "nats")]

    def _index(self, share: np.ndarray) -> np.ndarray:
        """Return every client's index A, float64 ``[N]``; infinite for one that never took part."""
        count = self.count_.numpy()
        seen = count > 0
        spread = 2.0 * self.sigma_**2 * math.log(max(self.time_, 1.0))
        width = np.sqrt(np.divide(spread, count, out=np.zeros_like(count), where=seen))
        return np.where(seen, share * (self.mean_.numpy() + width), np.inf)
