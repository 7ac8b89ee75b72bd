"""E3CS: a bandit that learns which clients deliver, with a quota for those that do not.

T. Huang, W. Lin, L. Shen, K. Li, A. Y. Zomaya: "Stochastic Client Selection for Federated Learning with
Volatile Clients", IEEE Internet of Things Journal 2022 (arXiv:2011.08756), Algorithm 1.

**Deviations**:

- The paper's text was not available. The formulas are those of a summary of the paper, and of the bandit
  Exp3.M on which it builds. The one public implementation also updates clients that were not chosen, and does
  not solve for the cap.
- A client succeeds if its update arrives and is finite.
- N is the number of clients available now that have examples, and K is at most N.
- As in the summary, clients are drawn one by one in proportion to p, so that the probability to be in the
  cohort is not exactly p_i.
- Updates are weighted by examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.selector import Diagnostic, Plan, Selector, Updates, View
from flsel.selectors._sampling import successive, with_examples


@final
@dataclass(eq=False)
class E3CS(Selector):
    """Draw clients by p_i = sigma + (K - N sigma) w_i / sum of w, where w grows with every success.

    Attributes:
        quota: Share of K/N that every client's p_i has at the least (sigma = quota K/N); 1 draws uniformly.
        start: Share of the run's rounds before the quota holds; 0.25 with ``quota`` 1 is E3CS-inc.
        eta: Learning rate (eta).
    """

    only_synchronous = "its chances are those of a cohort that is drawn and comes back together"
    quota: Annotated[float, Range(0, 1), Tunable(0.0, 0.9)] = 0.5
    start: Annotated[float, Range(0, 1)] = 0.0
    eta: Annotated[float, Range(0), Tunable(0.05, 5.0, log=True)] = 0.5

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all successes."""
        self.log_weight_ = torch.zeros(len(sizes), dtype=torch.float64)
        # The present cohort, and what a success adds to each of its logarithms.
        self.chosen_ = torch.empty(0, dtype=torch.int64)
        self.gain_ = torch.empty(0, dtype=torch.float64)

    def select(self, view: View) -> Plan:
        """Draw the cohort."""
        pool = with_examples(view.pool, view.sizes)
        count = min(view.clients_per_round, len(pool))
        holds = view.round >= self.start * view.rounds
        sigma = self.quota * count / len(pool) if holds else 0.0
        weights = np.exp(self.log_weight_.numpy()[pool] - self.log_weight_.numpy()[pool].max())
        chance, capped = capped_chances(weights, count, sigma)
        drawn = successive(np.log(chance.clip(1e-300)), count, view.rng)
        self.chosen_ = torch.from_numpy(pool[drawn])
        step = (count - len(pool) * sigma) * self.eta / len(pool)
        self.gain_ = torch.from_numpy(np.where(capped, 0.0, step / chance.clip(1e-300))[drawn])
        return Plan.star(pool[drawn])

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Raise the weights of clients whose update arrived."""
        arrived = torch.isin(self.chosen_, updates.clients)
        grown = self.log_weight_.index_add(0, self.chosen_[arrived], self.gain_[arrived])
        self.log_weight_ = grown - grown.max()  # Only ratios matter.

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the logarithms of the weights."""
        return [Diagnostic("log weight", "client", self.log_weight_.numpy()[clients])]


def capped_chances(weights: np.ndarray, count: int, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Return p_i = sigma + (K - N sigma) w_i / sum of w, where weights above a cap count as the cap.

    Args:
        weights: w, float64 ``[N]``, >= 0, the largest 1.
        count: K, at most N.
        sigma: Smallest p_i, at most K/N.

    Returns:
        p, float64 ``[N]``, in [sigma, 1], sum K, and whether each weight is at the cap.
    """
    clients = len(weights)
    spread, ceiling = count - clients * sigma, 1.0 - sigma
    if count == clients:
        return np.ones(clients), np.ones(clients, dtype=bool)
    order = np.argsort(-weights, kind="stable")
    capped = np.zeros(clients, dtype=bool)
    for most in range(count):
        rest = weights[order[most:]]
        left = spread - most * ceiling  # What those below the cap share.
        if rest.sum() <= 0:
            break
        if left * rest[0] <= ceiling * rest.sum() * (1 + 1e-12):
            chance = np.full(clients, 1.0)
            chance[order[most:]] = sigma + left * rest / rest.sum()
            return np.minimum(chance, 1.0), capped
        capped[order[most]] = True
    # Fewer than K weights are above zero: those are certain, and all others are alike.
    rest = order[capped.sum() :]
    chance = np.ones(clients)
    chance[rest] = (count - capped.sum()) / len(rest)
    return chance, capped
