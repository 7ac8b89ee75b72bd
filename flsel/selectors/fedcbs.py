"""Fed-CBS: draw clients one after another so that the labels of the cohort are balanced.

J. Zhang, A. Li, M. Tang, J. Sun, X. Chen, F. Zhang, C. Chen, Y. Chen, H. Li: "Fed-CBS: A Heterogeneity-Aware
Client Sampling Mechanism for Federated Learning via Class-Imbalance Reduction", ICML 2023 (arXiv:2209.15245),
section 4.

**Deviations**:

- Neither the authors' code nor the paper's text was available. The formulas are those of a summary of the
  paper, checked against a public implementation.
- Factors that do not depend on the candidate cancel in a draw. After m - 1 clients are chosen, candidate i is
  drawn with probability proportional to QCID(S + i)^(-beta_m), where beta_m = ``beta`` m, as in that
  implementation. Participations are counted from one, as there, so that a client that never took part has a
  finite bonus.
- The clients' label counts replace the encrypted inner products of the paper. From these a server learns the
  same QCID and nothing else.
- B is the number of classes of the task. A QCID below 1e-9 counts as 1e-9. Candidates are the clients
  available now that have examples.
- In an asynchronous run the labels of the clients in flight are in S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.selector import Need, Plan, Selector, View
from flsel.selectors._sampling import successive, with_examples

_SMALLEST = 1e-9  # A perfectly balanced cohort has QCID 0, and would have an infinite weight.


@final
@dataclass(eq=False)
class FedCBS(Selector):
    """Draw a balanced cohort, where the first draw has a bonus for clients that rarely took part.

    Attributes:
        lam: Weight of the bonus of the first draw (lambda).
        beta: Growth of the exponents: the m-th draw has beta_m = beta m. A large one makes the cohort greedy.
    """

    needs = Need.LABELS
    lam: Annotated[float, Range(0), Tunable(0.1, 100.0, log=True)] = 10.0
    beta: Annotated[float, Range(0), Tunable(0.1, 10.0, log=True)] = 1.0

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all participations."""
        self.count_ = torch.zeros(len(sizes), dtype=torch.int64)

    def select(self, view: View) -> Plan:
        """Draw the cohort and count its participation."""
        pool = with_examples(view.pool, view.sizes)
        labels = view.labels.double()
        imbalance = Imbalance(labels[torch.from_numpy(pool)], labels[list(view.running)].sum(dim=0))
        chosen: list[int] = []
        for draw in range(1, min(view.clients_per_round, len(pool)) + 1):
            log_weights = -self.beta * draw * np.log(imbalance.with_each().clip(_SMALLEST))
            if draw == 1:
                log_weights = np.logaddexp(log_weights, self._log_bonus(pool, view.round))
            log_weights[chosen] = -np.inf
            chosen.append(int(successive(log_weights, 1, view.rng)[0]))
            imbalance.add(chosen[-1])
        cohort = torch.from_numpy(pool[chosen])
        self.count_ = self.count_.index_add(0, cohort, torch.ones_like(cohort))
        return Plan.star(cohort)

    def _log_bonus(self, pool: np.ndarray, round: int) -> np.ndarray:
        """Return the logarithm of lambda sqrt(3 ln t / (2 T_i)), t from one; -inf where that is zero."""
        spread = 1.5 * math.log(round + 1)
        with np.errstate(divide="ignore"):
            bonus: np.ndarray = np.log(self.lam * np.sqrt(spread / (1 + self.count_.numpy()[pool])))
        return bonus


class Imbalance:
    """QCID of a growing cohort: the squared distance of its shares of labels from equal shares.

    Args:
        counts: Label counts of n clients, float64 ``[n, B]``.
        inside: Label counts of clients already in the cohort, float64 ``[B]``; None for an empty cohort.
    """

    def __init__(self, counts: Tensor, inside: Tensor | None = None) -> None:
        self._counts = counts
        self._squares = counts.square().sum(dim=1)
        self._totals = counts.sum(dim=1)
        self._inside = torch.zeros(counts.shape[1], dtype=torch.float64) if inside is None else inside

    def add(self, client: int) -> None:
        """Take a client, by its row, into the cohort."""
        self._inside = self._inside + self._counts[client]

    def with_each(self) -> np.ndarray:
        """Return QCID of the cohort with each client, float64 ``[n]``; its largest value without examples.

        Only inner products of counts are used. They are whole numbers, so nothing is lost to rounding.
        """
        equal = 1.0 / len(self._inside)
        squares = self._squares + 2.0 * (self._counts @ self._inside) + self._inside @ self._inside
        totals = self._totals + self._inside.sum()
        found = squares / totals.square() - equal
        return torch.where(totals > 0, found.clamp(min=0.0), 1.0 - equal).numpy()
