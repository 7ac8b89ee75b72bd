"""SCAFFOLD: control variates correct local steps for the clients' drift.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning", ICML 2020, Algorithm 1 with option II of Eq. (4), and Eq. (5).

**Deviations**:

- Option II divides by K η_l, the distance that a constant gradient of one moves a parameter in K plain SGD
  steps. With momentum, which the paper does not use, that distance is longer. It is computed for the
  optimizer in use, so that c_k stays a (weighted) mean of the client's gradients. Other optimizers than SGD
  do not move in proportion to the gradient and are refused.
- Updates are averaged with the selector's weights. The paper's weights are equal, as with ``Uniform`` and its
  ``weights: equal``. The control variates are always averaged equally, over all N clients.
- The server's step size η_g is the learning rate of ``server_optimizer``.
- A client without examples takes no step and keeps its control variate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from flsel.objectives.objective import LocalUpdates, Objective
from flsel.params import Params
from flsel.selector.client_rows import allocate, store


@final
@dataclass(eq=False)
class SCAFFOLD(Objective):
    """Step along g_k(y) - c_k + c, where c_k estimates the client's gradient and c the mean of all.

    Memory: one model per client that ever took part, and one for c. A control variate is sent with every
    model, down and up.
    """

    needs_sgd: ClassVar[bool] = True
    messages: ClassVar[int] = 2

    def reset(self, params: Params, clients: int) -> None:
        """Start with all control variates zero, as the paper recommends."""
        self.slots_, self.controls_ = allocate(params, clients)  # c_k
        self.control_ = {name: rows[0].clone() for name, rows in self.controls_.items()}  # c, their mean

    def correct(self, grads: Params, params: Params, starts: Params, clients: int | Tensor) -> None:
        """Add c - c_k (Eq. 3)."""
        slots = self.slots_[clients]
        for name, grad in grads.items():
            grad.add_(self.control_[name] - self.controls_[name][slots])

    def observe(self, updates: LocalUpdates) -> None:
        """Set the participants' c_k to c_k - c + (x - y) / (K η_l) (Eq. 4), and c to the mean (Eq. 5)."""
        reach = updates.reach()
        slots = self.slots_[updates.clients.to(self.slots_.device)]
        old = {name: rows[slots] for name, rows in self.controls_.items()}
        new = {
            # Without a step (or at a learning rate of zero) this is not finite, and the row stays.
            name: old[name] - control - updates.deltas[name] / _as_column(reach[name], updates.deltas[name])
            if name in reach
            else old[name]  # what the optimizer leaves alone has no drift
            for name, control in self.control_.items()
        }
        kept = store(self.slots_, self.controls_, updates.clients, new)
        for name, control in self.control_.items():
            control += (new[name] - old[name])[kept].sum(dim=0) / len(self.slots_)


def _as_column(values: Tensor, like: Tensor) -> Tensor:
    """Shape ``[K]`` values to divide the rows of a stack ``[K, ...]``."""
    return values.to(like).view(-1, *[1] * (like.ndim - 1))
