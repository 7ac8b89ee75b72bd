"""Optimal client sampling: all candidates train, and the larger an update, the likelier it is sent.

W. Chen, S. Horvath, P. Richtarik: "Optimal Client Sampling for Federated Learning", TMLR 2022
(arXiv:2010.13723), Algorithm 1 (OCS, ``exact``) and Algorithm 2 (AOCS, ``approximate``).

**Deviations**:

- K is the number of candidates (the paper's n), drawn uniformly from the clients available now. ``mean`` is
  the mean number of updates that are sent (m).
- A candidate's share w_i is its share of the candidates' examples, as in the authors' code. The estimate is
  unbiased for the candidates' average. It is unbiased for the average of all clients as far as uniform
  candidates represent them.
- If no update is sent, the model does not change. A candidate whose update is not finite sends nothing.
- If all updates are zero, all probabilities are m/n. The paper divides zero by zero.
- The ledger counts the numbers that candidates send: their norm, and two for each rescaling of AOCS. It does
  not count the numbers that are sent back to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range
from flsel.errors import UserError
from flsel.metrics import Cost
from flsel.params import squared_norms
from flsel.selector import Need, Plan, Selector, Updates, View
from flsel.selectors._inclusion import approximate_inclusion, optimal_inclusion
from flsel.selectors._sampling import shares, with_examples


@final
@dataclass(eq=False)
class OptimalSampling(Selector):
    """Train the candidates and send each update with a probability that grows with its weighted norm.

    Attributes:
        mean: Mean number of updates that are sent (m), at most the number of candidates; null means half of
            them, rounded up.
        method: ``approximate`` (AOCS) needs sums over clients alone, so secure aggregation hides every single
            norm; ``exact`` (OCS) shows the norms to the server.
        iterations: Most rescalings of AOCS (j_max).
    """

    only_synchronous = "whether a client sends its update depends on those of the others"
    assumes_arrival = True
    needs = Need.DELTAS
    two_phase = True
    mean: Annotated[float | None, Range(above=0)] = None
    method: Literal["approximate", "exact"] = "approximate"
    iterations: Annotated[int, Range(1)] = 4

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Refuse a mean above the number of candidates."""
        if self.mean is not None and self.mean > clients_per_round:
            raise UserError(
                f"selector.mean must be at most clients_per_round ({clients_per_round}), got {self.mean}."
            )

    def select(self, view: View) -> Plan:
        """Draw the candidates uniformly."""
        return Plan.star(view.rng.permutation(with_examples(view.pool, view.sizes))[: view.clients_per_round])

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Toss a coin for each update; weigh those that are sent by w_i / p_i and the others zero."""
        share = shares(updates.sizes.numpy())
        lengths = share * np.sqrt(squared_norms(updates.deltas))
        finite = np.isfinite(lengths)
        probability = np.zeros(len(lengths))
        probability[finite] = self._inclusion(lengths[finite], view, updates.clients.numpy()[finite].tolist())
        sent = view.rng.random(len(lengths)) < probability
        weights = np.divide(share, probability, out=np.zeros(len(lengths)), where=sent)
        return torch.from_numpy(weights)

    def _inclusion(self, lengths: np.ndarray, view: View, clients: list[int]) -> np.ndarray:
        """Return each update's probability to be sent, and charge what finding it takes."""
        mean = math.ceil(view.clients_per_round / 2) if self.mean is None else self.mean
        if self.method == "exact":
            view.charge(Cost(scalars_up=len(lengths)), clients)
            return optimal_inclusion(lengths, mean)
        probability, made = approximate_inclusion(lengths, mean, self.iterations)
        view.charge(Cost(scalars_up=len(lengths) * (1 + 2 * made)), clients)
        return probability
