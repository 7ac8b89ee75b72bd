"""Pisces: fill free slots with the clients of the largest losses, discounted by their staleness.

Z. Jiang, W. Wang, B. Li, B. Li: "Pisces: Efficient Federated Learning via Guided Asynchronous Training", SoCC
2022 (arXiv:2206.09264); code TL-System/plato.

**Deviations**:

- The paper's text was not available. The rules are those of the code, but for the utility. Here it has Oort's
  form: examples times the root mean square of their losses. In the code it is the square root of the number
  of examples times the fourth root of a moving average (weight 0.01) of the batches' losses, not squared.
- The exploring share decays with each step of the server. In the code it decays with each selection, which is
  the same there.
- The losses are those of the received model on the examples that a client trains on. In the code they are
  those of the first epoch's batches, during which the model changes.
- A report that is lost or not finite leaves the utility unchanged; it is zero at first. Ties are broken at
  random, in the code by client id.
- In the paper the server steps when the staleness of the clients in flight would exceed a bound. Here
  ``asynchronous.buffer`` decides when it steps, and ``asynchronous.bound`` which updates are too stale.
- The code's search for corrupted clients by their losses is not implemented.
- Updates are weighted by examples times the discount, and then by the engine's weight. So
  ``asynchronous.staleness: constant`` is the code's setting. In a synchronous run no update is stale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.selector import Diagnostic, Need, Plan, Selector, Updates, View
from flsel.selectors import _oort
from flsel.selectors._sampling import largest, with_examples


@final
@dataclass(eq=False)
class Pisces(Selector):
    """Take the clients with the largest utility, and explore unknown ones.

    The utility of a client is its number of examples times the root mean square of their losses, divided by
    (1 + its mean staleness)^``discount``.

    Attributes:
        discount: Exponent of the discount for stale updates (beta).
        exploration: Chance that a free slot explores, before the first step of the server.
        exploration_decay: Factor on that chance after each step.
        exploration_floor: Smallest chance.
        window: A client's last updates whose staleness is averaged.
    """

    needs = Need.SQUARED_LOSS
    discount: Annotated[float, Range(0), Tunable(0.0, 2.0)] = 0.5
    exploration: Annotated[float, Range(0, 1), Tunable(0.3, 1.0)] = 0.9
    exploration_decay: Annotated[float, Range(above=0, high=1), Tunable(0.9, 1.0)] = 0.98
    exploration_floor: Annotated[float, Range(0, 1), Tunable(0.0, 0.5)] = 0.3
    window: Annotated[int, Range(1), Tunable(1, 20)] = 5

    @property
    def weights_correct_for(self) -> str:
        """What the weights correct for, so that those of a round need not sum to one; empty for shares."""
        return "the staleness of clients, unless selector.discount is 0" if self.discount else ""

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all reports."""
        self.utility_ = torch.zeros(len(sizes), dtype=torch.float64)
        self.explored_ = torch.zeros(len(sizes), dtype=torch.bool)
        # The last ones of each client, the newest first; NaN where there were not so many.
        self.staleness_ = torch.full((len(sizes), self.window), math.nan, dtype=torch.float64)

    def select(self, view: View) -> Plan:
        """Draw the number of exploring slots, and fill the others by utility."""
        pool = with_examples(view.pool, view.sizes)
        count = min(view.clients_per_round, len(pool))
        explored = self.explored_.numpy()[pool]
        old, new = pool[explored], pool[~explored]
        share = _oort.epsilon(
            view.round + 1, self.exploration, self.exploration_decay, self.exploration_floor
        )
        explorers = min(len(new), int(view.rng.binomial(count, share)))
        exploiters = min(len(old), count - explorers)
        best = old[largest(self.utility_.numpy()[old], exploiters, view.rng)]
        first = view.rng.permutation(new)[: count - exploiters]
        self.explored_ = self.explored_.index_fill(0, torch.from_numpy(first), True)
        return Plan.star(np.concatenate([best, first]))

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh by examples and by the clients' mean staleness, float64 ``[K]``; weights sum to at most 1."""
        return super().weigh(view, updates) * self._discounts(updates.clients, self._with(updates))

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Store how stale the updates are, and the utilities of finite reports."""
        self.staleness_ = self._with(updates)
        found = torch.from_numpy(
            _oort.utilities(view.examples[updates.clients].double().numpy(), updates.squared_loss.numpy())
        )
        found = found * self._discounts(updates.clients, self.staleness_)
        utility = self.utility_.clone()
        # A client may have arrived twice: its last report counts.
        for client, value in zip(updates.clients.tolist(), found.tolist(), strict=True):
            if math.isfinite(value):
                utility[client] = value
        self.utility_ = utility

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the discounted utilities, and the clients' mean staleness; NaN where there is none."""
        staleness = self.staleness_[torch.from_numpy(clients)].nanmean(dim=1).numpy()
        return [
            Diagnostic("utility", "client", self.utility_.numpy()[clients]),
            Diagnostic("mean staleness", "client", staleness, "server steps"),
        ]

    def _with(self, updates: Updates) -> Tensor:
        """Return the staleness of the last updates, these included, float64 ``[N, window]``."""
        kept = self.staleness_.clone()
        for client, staleness in zip(updates.clients.tolist(), updates.staleness.tolist(), strict=True):
            kept[client] = torch.cat([torch.tensor([float(staleness)]), kept[client, :-1]])
        return kept

    def _discounts(self, clients: Tensor, staleness: Tensor) -> Tensor:
        """Return 1 / (1 + mean staleness)^beta, float64 ``[n]``."""
        return (1.0 + staleness[clients].nanmean(dim=1)) ** -self.discount
