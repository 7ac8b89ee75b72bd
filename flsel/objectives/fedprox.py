"""FedProx: a proximal term that keeps local models near the model they started from.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Eq. (2).

**Deviations.** None in the objective. The paper's inexact local solver is ``local.optimizer``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

from torch import Tensor

from flsel.arguments import Range
from flsel.objectives.objective import Objective
from flsel.params import Params


@final
@dataclass(eq=False)
class FedProx(Objective):
    """Minimise F_k(w) + (mu / 2) ||w - w_t||^2.

    Attributes:
        mu: Strength of the proximal term (μ); 0 is FedAvg.
    """

    mu: Annotated[float, Range(0)] = 0.01

    def correct(self, grads: Params, params: Params, starts: Params, clients: int | Tensor) -> None:
        """Add mu (w - w_t), the gradient of the proximal term."""
        for name, grad in grads.items():
            grad.add_(params[name] - starts[name], alpha=self.mu)
