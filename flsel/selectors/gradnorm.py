"""GradientNorm (BN2): train a macro set of clients and aggregate the largest updates.

M. M. Amiri, D. Guenduez, S. R. Kulkarni, H. V. Poor: "Convergence of Update Aware Device Scheduling for
Federated Learning at the Wireless Edge", IEEE Transactions on Wireless Communications 2021
(arXiv:2001.10402), policy BN2; a baseline of FedPNS (arXiv:2105.07066, section V-D).

**Deviations**: the run's budget is the macro set, drawn uniformly among the clients available now. A budget
of 20 with ``keep=10`` is FedPNS's baseline against methods with a budget of 10, and a budget of N is Amiri's,
where every device trains. In the protocol only a norm comes back from those not kept; the ledger counts a
model up from each, because the simulated server looks at the updates themselves.

Updates are divided by how far a constant gradient would have come in their local steps (the number of steps
for plain SGD), so that clients with more data do not win by taking more steps; ``per_step=False`` compares
whole updates. FedPNS's code averages the first ten clients of twenty whatever their norms; this does what the
paper says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.selector import Need, Plan, Selector, Updates, View
from flsel.selectors._sampling import with_examples
from flsel.stack import squared_norms


@final
@dataclass(eq=False)
class GradientNorm(Selector):
    """Draw the budget's worth of clients uniformly and keep the updates with the largest norms.

    Attributes:
        keep: Updates to aggregate (K), at most the budget (the macro set's size M0); null means half the
            budget, rounded up.
        per_step: Whether to compare updates per local step, momentum reckoned in.
    """

    needs = Need.DELTAS
    keep: Annotated[int | None, Range(1)] = None
    per_step: bool = True

    def check_budget(self, budget: int) -> None:
        """Refuse a budget below ``keep``.

        Raises:
            UserError: If it is.
        """
        if self.keep is not None and self.keep > budget:
            raise UserError(f"selector.keep must be at most the budget ({budget}), got {self.keep}.")

    def select(self, view: View) -> Plan:
        """Draw the macro set."""
        return Plan.star(view.rng.permutation(with_examples(view.pool, view.sizes))[: view.budget])

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh the largest updates equally and the others zero; one that is not finite is never kept."""
        size = np.sqrt(squared_norms(updates.deltas))
        if self.per_step:
            size /= updates.travel.numpy().clip(min=1)
        # Among equals the lowest id wins.
        order = np.lexsort((updates.clients.numpy(), -size))
        keep = (view.budget + 1) // 2 if self.keep is None else self.keep
        kept = order[np.isfinite(size[order])][:keep]
        weights = torch.zeros(len(size), dtype=torch.float64)
        weights[torch.from_numpy(kept)] = 1.0 / max(len(kept), 1)
        return weights
