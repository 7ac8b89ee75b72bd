"""FedNova: updates are divided by how far their clients went, so that more local work is no larger weight.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor: "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", NeurIPS 2020, Eq. (7) and Algorithm 1: the model changes by
τ_eff Σ_k p_k Δ_k / ||a_k||_1 with τ_eff = Σ_k p_k ||a_k||_1. For SGD ||a_k||_1 is the number of steps, and
with momentum the distance that a constant gradient goes in them.

**Deviations.** The weights p_k are the selector's. ``Uniform`` weighs by size within the cohort, as the
paper's code does. The paper's local momentum and proximal variants change a_k. Momentum is taken from
``local.optimizer``. There is no proximal term. Other optimizers than SGD count steps.
"""

from __future__ import annotations

from typing import final

from torch import Tensor

from flsel.objectives.objective import Objective


@final
class FedNova(Objective):
    """Minimise the client's own loss, and normalise the updates by the local work behind them.

    It matters if clients take different numbers of steps: with ``local.epochs``, or if they return partial
    work (``time.late: partial``). Nothing but the model is sent.
    """

    def reweigh(self, weights: Tensor, travel: Tensor) -> Tensor:
        """Multiply each weight by τ_eff / ||a_k||_1."""
        effective = (weights * travel).sum()
        went = travel > 0
        return weights * (effective / travel.where(went, travel.new_ones(()))) * went
