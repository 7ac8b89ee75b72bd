"""MOON: pull representations towards the global model's and away from the client's previous model's.

Q. Li, B. He, D. Song: "Model-Contrastive Federated Learning", CVPR 2021, Eqs. (3), (4), Algorithm 1.

**Deviations**:

- The representation is the input of the output layer, R_w(x) in the paper. The paper puts a projection head
  of two layers before it. Here the model is the one in the config. If the output layer sees the raw input
  (logistic regression), nothing can be contrasted and clients train as with FedAvg.
- The paper does not define the previous model at a client's first training. Here there is none, and the
  client trains as with FedAvg. The reference code (QinbinLi/MOON) does the same in round 0. In later rounds
  that code compares with a random model for clients that never took part.
- One previous model is kept, as in the paper. The reference code's longer buffers are not implemented.
- The frozen models run in eval mode, as in the reference code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from flsel.arguments import Range
from flsel.objectives.objective import LocalUpdates, Objective
from flsel.params import Params
from flsel.selector.client_rows import allocate, store


@final
@dataclass(eq=False)
class MOON(Objective):
    """Add μ times the model-contrastive loss of a batch to the client's loss.

    Memory: one model per client that ever took part. Every local step runs the global and the previous model
    too, so that a step costs up to twice as much. Nothing but the model is sent.

    Attributes:
        mu: Weight of the contrastive loss (μ); 0 is FedAvg. The paper's best are 5 for CIFAR-10 and 1 for
            CIFAR-100 and Tiny-ImageNet.
        temperature: Temperature of the similarities (τ).
    """

    averages: ClassVar[bool] = True
    frozen_models: ClassVar[int] = 2

    mu: Annotated[float, Range(0)] = 1.0
    temperature: Annotated[float, Range(above=0)] = 0.5

    def reset(self, params: Params, clients: int) -> None:
        """Forget all previous local models."""
        self.slots_, self.previous_ = allocate(params, clients)

    def models(self, starts: Params, clients: int | Tensor) -> tuple[Params, ...]:
        """Return the global and the clients' previous models; a new client's is the global one."""
        slots = self.slots_[clients]
        previous = {
            name: _choose(slots > 0, self.previous_[name][slots], start) if name in self.previous_ else start
            for name, start in starts.items()
        }
        return starts, previous

    def contrast(self, own: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Return μ times the batch's mean of -log(e^(s_glob/τ) / (e^(s_glob/τ) + e^(s_prev/τ))) (Eq. 3).

        Its gradient is zero where both models are the same.
        """
        near, far = (torch.nn.functional.cosine_similarity(own, other, dim=-1) for other in others)
        return self.mu * torch.nn.functional.softplus((far - near) / self.temperature).mean()

    def observe(self, updates: LocalUpdates) -> None:
        """Keep the participants' local models."""
        ends = {name: updates.starts[name] + delta for name, delta in updates.deltas.items()}
        store(self.slots_, self.previous_, updates.clients, ends)


def _choose(seen: Tensor, rows: Tensor, others: Tensor) -> Tensor:
    """Take a row where ``seen`` (bool ``[K]``, or one bool for one row) and the other where not."""
    return torch.where(seen.view([*seen.shape, *[1] * (rows.ndim - seen.ndim)]), rows, others)
