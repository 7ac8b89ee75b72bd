"""FedProx: a proximal term that keeps local models near the model they started from.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Eq. (2).

**Deviations.** None in the objective; the paper's inexact local solver is whatever ``local.optimizer`` is.
"""

from __future__ import annotations

import math
from typing import final

from torch import Tensor

from flsel.errors import UserError
from flsel.objectives.objective import Objective
from flsel.stack import Params


@final
class FedProx(Objective):
    """Minimise F_k(w) + (mu / 2) ||w - w_t||^2.

    Args:
        mu: Strength of the proximal term (μ), >= 0; 0 is FedAvg.

    Raises:
        UserError: If ``mu`` is negative or not finite.
    """

    def __init__(self, mu: float = 0.01) -> None:
        if not (math.isfinite(mu) and mu >= 0):
            raise UserError(f"mu must be a finite number >= 0, got {mu}.")
        self.mu = mu

    def correct(self, grads: Params, params: Params, starts: Params, clients: int | Tensor) -> None:
        """Add mu (w - w_t), the gradient of the proximal term."""
        for name, grad in grads.items():
            grad.add_(params[name] - starts[name], alpha=self.mu)
