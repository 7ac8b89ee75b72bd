"""FedDyn: a regulariser that changes every round, so that local optima agree with the global one.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama: "Federated Learning Based
on Dynamic Regularization", ICLR 2021, Eq. (1), Algorithm 1.

The paper's gradients are multiples of D_k, the sum of client k's updates, which is what is kept:
∇L_k(θ_k) = -α D_k and h = -α (1/m) Σ_k D_k. So the server adds the mean of all D_k to the clients' mean.

**Deviations**:

- The paper solves the local problem exactly. Here ``local.optimizer`` takes steps on it, as in the reference
  code (alpemreacar/FedDyn).
- Updates are averaged with the selector's weights. The paper's weights are equal, as with ``Uniform`` and its
  ``weights: equal``.
- The reference code divides α by a client's relative data size and clips gradients. The paper and flsel do
  not.
- The reference code also reports the mean of the clients' models without the server's correction. Here the
  model that is sent out is evaluated, as in Algorithm 1.

As α goes to 0, clients train as with FedAvg, but the server's correction does not depend on α and stays. So
FedDyn with a tiny α is FedAvg that also adds the mean of all past updates, and overshoots. α must be
positive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

from torch import Tensor

from flsel.arguments import Range
from flsel.objectives.objective import LocalUpdates, Objective
from flsel.params import Params
from flsel.selector.client_rows import allocate, store


@final
@dataclass(eq=False)
class FedDyn(Objective):
    """Minimise F_k(θ) - <∇F_k(θ_k), θ> + (α / 2) ||θ - θ_t||^2, with the gradient at the last local model.

    Memory: one model per client that ever took part. Nothing but the model is sent.

    Attributes:
        alpha: Strength of the regulariser (α); the paper chooses among 0.1, 0.01 and 0.001.
    """

    alpha: Annotated[float, Range(above=0)] = 0.01

    def reset(self, params: Params, clients: int) -> None:
        """Start with no updates: all gradients and h are zero, as in Algorithm 1."""
        self.slots_, self.drift_ = allocate(params, clients)  # D_k
        self.mean_drift_ = {
            name: rows[0].clone() for name, rows in self.drift_.items()
        }  # mean of all D_k = -h / α

    def correct(self, grads: Params, params: Params, starts: Params, clients: int | Tensor) -> None:
        """Add α (θ - θ_t + D_k), the gradient of what Eq. (1) adds to the loss."""
        slots = self.slots_[clients]
        for name, grad in grads.items():
            grad.add_(params[name] - starts[name] + self.drift_[name][slots], alpha=self.alpha)

    def observe(self, updates: LocalUpdates) -> None:
        """Add the participants' updates to their D_k, and to the mean."""
        slots = self.slots_[updates.clients.to(self.slots_.device)]
        drift = {name: rows[slots] + updates.deltas[name] for name, rows in self.drift_.items()}
        kept = store(self.slots_, self.drift_, updates.clients, drift)
        for name, mean in self.mean_drift_.items():
            mean += updates.deltas[name][kept].sum(dim=0) / len(self.slots_)

    def aggregate(self, delta: Params) -> Params:
        """Subtract h / α from the mean of the clients' models."""
        return {
            n: value + self.mean_drift_[n] if n in self.mean_drift_ else value for n, value in delta.items()
        }
