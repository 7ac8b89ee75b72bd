"""GradientNorm (BN2): train a macro set of clients and aggregate the largest updates.

M. M. Amiri, D. Guenduez, S. R. Kulkarni, H. V. Poor: "Convergence of Update Aware Device Scheduling for
Federated Learning at the Wireless Edge", IEEE Transactions on Wireless Communications 2021
(arXiv:2001.10402), policy BN2; a baseline of FedPNS (arXiv:2105.07066, section V-D).

**Deviations**:

- ``clients_per_round`` is the size of the macro set, drawn uniformly from the clients available now. 20 with
  ``keep=10`` is FedPNS's baseline against methods with 10 clients per round. N is Amiri's method, where every
  device trains.
- In the paper's protocol the clients that are not kept send a norm only. The ledger counts a model up from
  each, because the simulated server uses the updates themselves.
- Updates are divided by the distance that a constant gradient of one would have moved them in their local
  steps (the number of steps for plain SGD). So clients with more data are not preferred because they take
  more steps. ``per_step=False`` compares whole updates.
- FedPNS's code averages the first ten clients of twenty, whatever their norms. flsel follows the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.params import squared_norms
from flsel.selector import Need, Plan, Selector, Updates, View
from flsel.selectors._sampling import with_examples


@final
@dataclass(eq=False)
class GradientNorm(Selector):
    """Draw K clients uniformly and keep the updates with the largest norms.

    Attributes:
        keep: Number of updates to aggregate, at most ``clients_per_round`` (the macro set's size M0); null
            means half of that, rounded up.
        per_step: Whether to compare updates per local step. Momentum is taken into account.
    """

    only_synchronous = "it compares the updates of one cohort, of which it keeps the largest"
    needs = Need.DELTAS
    keep: Annotated[int | None, Range(1)] = None
    per_step: bool = True

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Refuse a K below ``keep``."""
        if self.keep is not None and self.keep > clients_per_round:
            raise UserError(
                f"selector.keep must be at most clients_per_round ({clients_per_round}), got {self.keep}."
            )

    def select(self, view: View) -> Plan:
        """Draw the macro set."""
        return Plan.star(view.rng.permutation(with_examples(view.pool, view.sizes))[: view.clients_per_round])

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh the largest updates equally and the others zero; one that is not finite is never kept."""
        size = np.sqrt(squared_norms(updates.deltas))
        if self.per_step:
            size /= updates.travel.numpy().clip(min=1)
        # Among equals the lowest id wins.
        order = np.lexsort((updates.clients.numpy(), -size))
        keep = (view.clients_per_round + 1) // 2 if self.keep is None else self.keep
        kept = order[np.isfinite(size[order])][:keep]
        weights = torch.zeros(len(size), dtype=torch.float64)
        weights[torch.from_numpy(kept)] = 1.0 / max(len(kept), 1)
        return weights
