"""FedPNS: aggregate the updates that agree, and choose their clients more often.

H. Wu, P. Wang: "Node Selection Toward Faster Convergence for Federated Learning on Non-IID Data", IEEE
Transactions on Network Science and Engineering 2022 (arXiv:2105.07066), Algorithms 1 and 2, equations 7-8.

**Deviations**:

- The paper compares the expectation (mean) of inner products. It always rises without some client, unless all
  gradients are equal, so every round labels a client (``expectation="mean"``). The default compares the sum,
  as the reference code does, but without its rounding to two decimals.
- As printed, line 11 of Algorithm 1 keeps a client whose removal lowers the loss. The paper's text, its code
  and flsel remove the client if the loss does not rise.
- At least ceil(v K) of K updates survive. The paper's loop stops one later.
- In the code's loss check both candidates contain the removed update, by accident. Here they do not.
- The loss is measured on the whole server holdout. The paper takes a batch of the *test* set. But a test set
  that influences the training no longer gives a test accuracy.
- Beyond the paper: before gradients are compared, an update is divided by the distance that a constant
  gradient would have moved it in its own local steps. Clients of probability zero fill up a cohort if the
  others are too few. An update that is not finite has weight zero and is not labelled.
- The first cohort is uniform. The code's first cohort has five clients known to be i.i.d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.errors import UserError
from flsel.params import Params, height, rows, squared_norms, weighted_sum
from flsel.selector import Diagnostic, Need, Plan, Selector, Updates, View
from flsel.selectors._optimal import Expectation, optimal_aggregation
from flsel.selectors._sampling import fill_up, successive, with_examples

_EXACT = 1e-9  # 0.7 * 30 is 21.000000000000004 in floating point; the paper means 21.


@final
@dataclass(eq=False)
class FedPNS(Selector):
    """Draw clients by probabilities that fall whenever Optimal Aggregation labels a client as adverse.

    Attributes:
        alpha: Exponent of the decrement (alpha).
        beta: Offset of the decrement (beta).
        v: Smallest share of the updates that are kept (v); with 1 no client is ever labelled.
        expectation: ``sum`` or ``mean`` of the inner products.
        p_min: Floor of every client's probability, at most 1/N; 0 is the paper, where a client labelled the
            first time that it takes part is not chosen again until others are labelled.
    """

    only_synchronous = "it compares updates that start from one model"
    needs = Need.DELTAS | Need.SERVER_LOSS
    alpha: Annotated[float, Range(above=0), Tunable(1.0, 3.0)] = 2.0
    beta: Annotated[float, Range(0, 1), Tunable(0.3, 0.9)] = 0.7
    v: Annotated[float, Range(above=0, high=1), Tunable(0.5, 0.9)] = 0.7
    _: KW_ONLY
    expectation: Expectation = "sum"
    p_min: Annotated[float, Range(0, 1)] = 0.0

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Give every client the probability 1/N.

        Raises:
            UserError: If ``p_min`` is above 1/N.
        """
        clients = len(sizes)
        if self.p_min * clients > 1:
            raise UserError(f"p_min must be at most 1/{clients} for {clients} clients, got {self.p_min}.")
        self.probability_ = torch.full((clients,), 1.0 / clients, dtype=torch.float64)
        self.chosen_ = torch.zeros(clients, dtype=torch.int64)
        self.labelled_ = torch.zeros(clients, dtype=torch.int64)
        # Labelled in the present round: found by weigh, counted by observe.
        self.adverse_ = torch.empty(0, dtype=torch.int64)

    def select(self, view: View) -> Plan:
        """Draw without replacement from the clients with examples, by the probabilities, and count them."""
        pool, probability = with_examples(view.pool, view.sizes), self.probability_.numpy()
        with np.errstate(divide="ignore"):
            drawn = pool[successive(np.log(probability[pool]), view.clients_per_round, view.rng)]
        drawn = fill_up(drawn, pool, min(view.clients_per_round, len(pool)), view.rng)
        # Here and not in observe: a client that was asked took part, whether or not its update arrives.
        self.chosen_ = self.chosen_.clone()
        self.chosen_[torch.from_numpy(drawn)] += 1
        return Plan.star(drawn)

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh the survivors of Optimal Aggregation equally and the others zero."""
        finite = np.flatnonzero(np.isfinite(squared_norms(updates.deltas)))
        deltas = rows(updates.deltas, torch.from_numpy(finite))
        weights = torch.zeros(len(updates.plan), dtype=torch.float64)
        self.adverse_ = torch.empty(0, dtype=torch.int64)
        if len(finite) == 0:
            return weights
        verdict = optimal_aggregation(
            deltas,
            1.0 / updates.travel.numpy()[finite].clip(min=1),
            least=math.ceil(self.v * len(finite) - _EXACT),
            expectation=self.expectation,
            loss=lambda some: view.server_loss(_candidate(view.params, deltas, some)),
        )
        self.adverse_ = updates.clients[finite[verdict.labelled]]
        weights[finite[verdict.survivors]] = 1.0 / len(verdict.survivors)
        return weights

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Count the labelled clients, then move probability from them to all others."""
        self.labelled_ = self.labelled_.index_add(0, self.adverse_, torch.ones_like(self.adverse_))
        ratio = self.labelled_[self.adverse_].double() / self.chosen_[self.adverse_]
        decrement = ((ratio + self.beta) ** self.alpha).clamp(max=1.0)
        self.probability_ = shifted(self.probability_, self.adverse_, decrement, p_min=self.p_min)

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the probabilities to be drawn."""
        return [Diagnostic("probability", "client", self.probability_.numpy()[clients])]


def shifted(probability: Tensor, adverse: Tensor, decrement: Tensor, *, p_min: float) -> Tensor:
    """Take a share of the labelled clients' probability and spread it over all others (equations 7-8).

    Args:
        probability: p, float64 ``[N]``, sum one.
        adverse: Labelled clients, int64 ``[n]``, distinct.
        decrement: Share of its probability that each loses, float64 ``[n]``, in [0, 1].
        p_min: Smallest probability of a client.

    Returns:
        The new probabilities, float64 ``[N]``, sum one; unchanged if all clients are labelled.
    """
    others = len(probability) - len(adverse)
    if len(adverse) == 0 or others == 0:
        return probability
    before = probability[adverse]
    lost = torch.minimum(before * decrement, (before - p_min).clamp(min=0.0))
    after = (probability + lost.sum() / others).index_put((adverse,), before - lost)
    return after / after.sum()


def _candidate(params: Params, deltas: Params, some: np.ndarray) -> Params:
    """Return the global model plus the mean of some rows of the updates."""
    weights = torch.zeros(height(deltas), dtype=torch.float64)
    weights[torch.from_numpy(some)] = 1.0 / len(some)
    return {name: params[name] + mean for name, mean in weighted_sum(deltas, weights).items()}
