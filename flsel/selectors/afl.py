"""Active Federated Learning: sample clients by how much loss they last reported.

J. Goetz, K. Malik, D. Bui, S. Moon, H. Liu, A. Kumar: "Active Federated Learning", FL-NeurIPS workshop 2019
(arXiv:1909.12641), Algorithm 1.

**Deviations**:

- The paper does not define initial valuations. Here clients that never took part come first, drawn uniformly,
  which costs no extra pass.
- If a client's first report is lost, its valuation is 0 from then on. A later report that is not finite
  leaves the valuation unchanged.
- The share of uniform draws is rounded up, so that exploration never stops.
- If too few clients would be left to draw from, fewer clients are dropped.
- The pool and all counts refer to the clients available now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.selector import Need, Plan, Selector, Updates, View
from flsel.selectors._sampling import largest, successive, with_examples, without

_ROUNDING = 1e-9  # 0.1 * 30 is 3.0000000000000004 in floating point; the paper means 3.


@final
@dataclass(eq=False)
class AFL(Selector):
    """Draw most of the cohort with probability exp(alpha2 v), the rest uniformly.

    The valuation of client k is v_k = sqrt(n_k) times the mean loss, on its n_k examples, of the model that
    it last received; it stays until the client takes part again.

    Attributes:
        alpha1: Share of the clients, those with the smallest valuations, that only the uniform draws can
            reach this round (alpha_1).
        alpha2: Inverse temperature of the valuations (alpha_2).
        alpha3: Share of the cohort drawn uniformly (alpha_3).
    """

    needs = Need.OWN_LOSS
    equal_weights = True
    alpha1: Annotated[float, Range(0, below=1), Tunable(0.0, 0.95)] = 0.75
    alpha2: Annotated[float, Range(0), Tunable(1e-3, 10.0, log=True)] = 0.01
    alpha3: Annotated[float, Range(0, 1), Tunable(0.0, 0.5)] = 0.1

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all valuations."""
        # NaN: never took part. A client without examples has nothing to report: its sum of losses is zero.
        self.value_ = torch.where(sizes == 0, 0.0, math.nan).to(torch.float64)

    def select(self, view: View) -> Plan:
        """Take clients without a valuation first, then follow Algorithm 1."""
        pool = with_examples(view.pool, view.sizes)
        value = self.value_.numpy()[pool]
        seen = ~np.isnan(value)
        first = view.rng.permutation(pool[~seen])[: view.clients_per_round]
        rest = pool[seen][self._draw(value[seen], view.clients_per_round - len(first), view.rng)]
        # Without this, a client whose updates never come back would be "new", and chosen, for ever.
        self.value_ = self.value_.index_fill(0, torch.from_numpy(first), 0.0)
        return Plan.star(np.concatenate([first, rest]))

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Store the participants' valuations; a non-finite report leaves the old one."""
        value = view.sizes[updates.clients].to(torch.float64).sqrt() * updates.own_loss
        finite = value.isfinite()
        self.value_ = self.value_.index_put((updates.clients[finite],), value[finite])

    def _draw(self, value: np.ndarray, clients_per_round: int, rng: np.random.Generator) -> np.ndarray:
        """Draw positions in ``value`` (float64 ``[n]``, finite): Algorithm 1 on n clients."""
        count = min(clients_per_round, len(value))
        uniform = math.ceil(self.alpha3 * count - _ROUNDING)
        log_weights = tempered(value, count - uniform, alpha1=self.alpha1, alpha2=self.alpha2, rng=rng)
        active = successive(log_weights, count - uniform, rng)
        others = without(np.arange(len(value)), active)
        return np.concatenate([active, rng.permutation(others)[:uniform]])


def tempered(
    value: np.ndarray, count: int, *, alpha1: float, alpha2: float, rng: np.random.Generator
) -> np.ndarray:
    """Return log weights of the active draws: alpha2 v, and -inf for the dropped clients.

    Args:
        value: Valuations v, float64 ``[n]``, finite.
        count: Clients to be drawn by these weights; at least as many stay.
        alpha1: Share to drop; floor(alpha1 n) smallest valuations.
        alpha2: Inverse temperature.
        rng: Breaks ties between equal valuations at the border.

    Returns:
        Float64 ``[n]``, not normalised.
    """
    dropped = min(math.floor(alpha1 * len(value) + _ROUNDING), len(value) - count)
    kept = largest(value, len(value) - dropped, rng)
    log_weights = np.full(len(value), -np.inf)
    log_weights[kept] = alpha2 * value[kept]
    return log_weights
