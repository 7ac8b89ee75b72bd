"""GreedyFed: choose the clients whose updates lowered the server's loss most, by their Shapley values.

P. Singhal, S. R. Pandey, P. Popovski: "Greedy Shapley Client Selection for Communication-Efficient Federated
Learning", IEEE Networking Letters 2024 (arXiv:2312.09108), with the authors' code; ``rule="softmax"`` is the
selection of S-FedAvg, L. Nagalapatti, R. Narayanam: "Game of Gradients: Mitigating Irrelevant Clients in
Federated Learning", AAAI 2021.

**Deviations**:

- The papers' texts were not available. The method is that of GreedyFed's code, which has both rules.
- The loss is measured on the server's holdout, as mean cross-entropy. If a coalition's loss is not finite, no
  value changes in this round.
- No coalition is measured twice in a round. Cohorts of up to ``exact`` clients get exact values from all
  coalitions. This takes fewer measurements than the random orders that larger cohorts use.
- Convergence of the running means is judged by their absolute values. In the code a negative mean counts as
  converged at once.
- Clients that never took part come first, drawn uniformly instead of by their number. With ``rule="softmax"``
  they start at the relevance zero.
- S-FedAvg's phi = alpha phi + beta s is ``memory`` = alpha with ``scale`` = beta / (1 - alpha), which is 1 by
  the defaults alpha = 0.75 and beta = 0.25. With this rule the code divides weights by the probabilities.
  Here updates are weighted by examples with both rules.
- In the code s is the mean of a client's Shapley values over its participations, times 10, and phi starts at
  1/N. Here s is the value of the present round and phi starts at 0. ``scale`` 10 takes the place of the
  factor.
- An update that is lost counts as a participation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import combinations
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.params import Params, height, rows, squared_norms, weighted_sum
from flsel.selector import Diagnostic, Need, Plan, Selector, Updates, View
from flsel.selectors._sampling import largest, shares, successive, with_examples
from flsel.selectors._shapley import exact, sampled

_NUMBERS = 2**24  # Parameters of the models that are measured together.


@final
@dataclass(eq=False)
class GreedyFed(Selector):
    """Value each update by what it adds to the cohort's model on the server's holdout; prefer large values.

    Attributes:
        rule: ``greedy`` takes the K largest values; ``softmax`` (S-FedAvg) draws by exp(scale phi).
        memory: Weight of a client's past values when a new one is added (alpha); null means the mean over all
            participations with ``greedy`` and 0.75 with ``softmax``.
        explore: Weight of sqrt(ln t / participations), which is added to the values under ``greedy`` (beta of
            the UCB variant).
        scale: Factor of the values under ``softmax``.
        exact: Largest cohort whose Shapley values are computed from all its coalitions.
        sweeps: Most sweeps of K random orders for larger cohorts.
        truncation: Difference of loss, in nats, that is too small to measure. If the loss of part of an order
            is this close to the loss of the whole cohort, the rest of the order counts as zero.
    """

    only_synchronous = "its Shapley values are those of a cohort that starts from one model"
    needs = Need.DELTAS | Need.SERVER_LOSS
    rule: Literal["greedy", "softmax"] = "greedy"
    memory: Annotated[float | None, Range(0, below=1)] = None
    _: KW_ONLY
    explore: Annotated[float, Range(0), Tunable(0.0, 0.1)] = 0.0
    scale: Annotated[float, Range(0), Tunable(0.1, 100.0, log=True)] = 1.0
    exact: Annotated[int, Range(0, 12)] = 6
    sweeps: Annotated[int, Range(1)] = 50
    truncation: Annotated[float, Range(0)] = 1e-4

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all values."""
        self.value_ = torch.zeros(len(sizes), dtype=torch.float64)
        self.valued_ = torch.zeros(len(sizes), dtype=torch.int64)
        self.count_ = torch.zeros(len(sizes), dtype=torch.int64)

    def select(self, view: View) -> Plan:
        """Choose by the values so far and count the participations."""
        pool = with_examples(view.pool, view.sizes)
        value, count = self.value_.numpy()[pool], self.count_.numpy()[pool]
        if self.rule == "softmax":
            places = successive(self.scale * value, view.clients_per_round, view.rng)
        else:
            width = self.explore * np.sqrt(math.log(max(view.round, 1)) / count.clip(min=1))
            index = np.where(count > 0, value + width, np.inf)
            places = largest(index, view.clients_per_round, view.rng)
        chosen = torch.from_numpy(pool[places])
        self.count_ = self.count_.index_add(0, chosen, torch.ones_like(chosen))
        return Plan.star(chosen)

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Measure coalitions of the cohort and add the Shapley values to those of its clients."""
        finite = torch.from_numpy(np.flatnonzero(np.isfinite(squared_norms(updates.deltas))))
        if len(finite) == 0:
            return
        deltas = rows(updates.deltas, finite)
        clients, sizes = updates.clients[finite], updates.sizes[finite].numpy()
        found = self._shapley(view, deltas, sizes)
        if not np.isfinite(found).all():
            return
        self.valued_ = self.valued_.index_add(0, clients, torch.ones_like(clients))
        if self.memory is None and self.rule == "greedy":
            keep = 1.0 - 1.0 / self.valued_[clients].double()
        else:
            keep = torch.full((len(clients),), 0.75 if self.memory is None else self.memory).double()
        averages = keep * self.value_[clients] + (1.0 - keep) * torch.from_numpy(found)
        self.value_ = self.value_.index_put((clients,), averages)

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the values."""
        return [Diagnostic("Shapley value", "client", self.value_.numpy()[clients], "nats")]

    def _shapley(self, view: View, deltas: Params, sizes: np.ndarray) -> np.ndarray:
        """Return what each update adds to the decrease of the server's loss, float64 ``[K]``."""

        def value(coalition: tuple[int, ...]) -> float:
            return -view.server_loss(_averaged(view.params, deltas, sizes, coalition))

        if len(sizes) <= self.exact:
            return exact(_worths(view, deltas, sizes).__getitem__, len(sizes))
        return sampled(value, len(sizes), view.rng, sweeps=self.sweeps, truncation=self.truncation)


def _worths(view: View, deltas: Params, sizes: np.ndarray) -> dict[tuple[int, ...], float]:
    """Return minus the server's loss of every coalition's average, measured together."""
    players = range(len(sizes))
    coalitions = [c for size in range(len(sizes) + 1) for c in combinations(players, size)]
    weights = torch.zeros((len(coalitions), len(sizes)), dtype=torch.float64)
    for k, members in enumerate(map(list, coalitions[1:]), start=1):
        weights[k, members] = torch.from_numpy(shares(sizes[members]))
    # A bounded number of models at a time.
    width = max(1, _NUMBERS // sum(value.numel() for value in view.params.values()))
    losses = [
        view.server_losses(
            {
                name: params + torch.tensordot(part.to(deltas[name]), deltas[name], dims=1).to(params)
                for name, params in view.params.items()
            }
        )
        for part in torch.split(weights, width)
    ]
    return dict(zip(coalitions, (-torch.cat(losses)).tolist(), strict=True))


def _averaged(params: Params, deltas: Params, sizes: np.ndarray, coalition: tuple[int, ...]) -> Params:
    """Return the global model plus the average of some updates, weighted by examples."""
    if not coalition:
        return params
    weights = torch.zeros(height(deltas), dtype=torch.float64)
    weights[list(coalition)] = torch.from_numpy(shares(sizes[list(coalition)]))
    return {name: params[name] + mean for name, mean in weighted_sum(deltas, weights).items()}
