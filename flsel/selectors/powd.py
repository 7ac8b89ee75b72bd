"""Power-of-Choice: train the clients with the largest losses among d candidates.

Y. J. Cho, J. Wang, G. Joshi: "Towards Understanding Biased Client Selection in Federated Learning",
AISTATS 2022 (arXiv:2010.01243, "Power-of-Choice Selection Strategies"), variant pi_pow-d of section 4.

**Deviations.** Candidates come from the clients available now, at most all of them. Clients without examples
cannot be candidates. A candidate that reports NaN ranks below every number. Ties are broken at random. The
cheaper variants cpow-d (loss of one mini-batch), rpow-d (loss of the last participation) and adapow-d
(shrinking d) are not implemented.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.selector import Need, Plan, Selector, View
from flsel.selectors._sampling import largest, log_shares, successive


@final
@dataclass(eq=False)
class PowD(Selector):
    """Draw d candidates by data share without replacement, then keep the K with the largest losses.

    Attributes:
        d: Candidates asked for their loss (d), at least K; null means 2 K. With d = K clients are drawn by
            data share without replacement. With d = N the K largest losses of all clients are taken.
    """

    needs = Need.LOSSES
    equal_weights = True
    d: Annotated[int | None, Range(1)] = None

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Refuse a K above d."""
        if self.d is not None and self.d < clients_per_round:
            raise UserError(
                f"selector.d must be at least clients_per_round ({clients_per_round}), got {self.d}."
            )

    def select(self, view: View) -> Plan:
        """Draw candidates, ask for their losses and keep the largest."""
        d = 2 * view.clients_per_round if self.d is None else self.d
        candidates = view.pool[successive(log_shares(view.pool_sizes), d, view.rng)]
        losses = view.losses(candidates.tolist()).numpy()
        return Plan.star(candidates[largest(losses, view.clients_per_round, view.rng)])
