"""OSMD: learn by mirror descent how likely to draw each client, from the norms of those drawn, without bias.

B. Zhao, L. Lyu, C. Xu, M. Kolar and others: "Adaptive Client Sampling in Federated Learning via Online
Learning with Bandit Feedback" (arXiv:2112.14332), OSMD sampler and its adaptive form, with the authors' code.

**Deviations**:

- The paper's text was not available. The formulas are those of the authors' code.
- A client that is drawn twice gives its feedback twice. The code counts it once, which makes the estimate of
  the loss biased.
- The learning rates depend on the largest squared norm, which is that of the updates seen so far. In the code
  it is that of all clients at the start.
- The distribution is restricted to the clients available now that have examples, and weights are unbiased for
  their shares. Feedback uses shares of all examples. An update that is lost or not finite gives no feedback.
  Where m of n draws arrive, each counts n / m times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.params import squared_norms
from flsel.selector import Diagnostic, Need, Plan, Selector, Updates, View
from flsel.selectors._sampling import shares, with_examples


@final
@dataclass(eq=False)
class OSMD(Selector):
    """Draw K clients with replacement from q, weigh each draw by p_i / (K q_i), and learn q.

    Attributes:
        alpha: Smallest probability, in units of 1/N (alpha).
        eta: Learning rate in units of the theory's, K^2 alpha^3 sqrt(ln N / (2 T)) / (N^3 a), a the largest
            squared feedback (eta); null weighs rates of 1, 2, 4, ... such units by their success (Ada-OSMD).
    """

    only_synchronous = "its chances are those of a cohort that is drawn and comes back together"
    assumes_arrival = True
    needs = Need.DELTAS
    alpha: Annotated[float, Range(above=0, below=1), Tunable(0.05, 0.95)] = 0.4
    eta: Annotated[float | None, Range(above=0)] = None

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all feedback."""
        clients = len(sizes)
        # One distribution for each learning rate; how many there are follows from the length of the run.
        self.expert_ = torch.full((0, clients), 1.0 / clients, dtype=torch.float64)
        self.trust_ = torch.empty(0, dtype=torch.float64)
        self.drawn_ = torch.zeros(clients, dtype=torch.float64)  # q of the present round
        self.largest_ = 0.0

    def select(self, view: View) -> Plan:
        """Draw K clients with replacement."""
        if len(self.expert_) == 0:
            number = 1 if self.eta is not None else experts(len(view.sizes), view.rounds, self.alpha)
            self.expert_ = torch.full((number, len(view.sizes)), 1.0 / len(view.sizes), dtype=torch.float64)
            rank = torch.arange(1, number + 1, dtype=torch.float64)
            self.trust_ = (1 + 1 / number) / (rank * (rank + 1))
        pool = with_examples(view.pool, view.sizes)
        mixed = (self.trust_ @ self.expert_).numpy()[pool]
        mixed = mixed / mixed.sum()
        self.drawn_ = torch.zeros(len(view.sizes), dtype=torch.float64)
        self.drawn_[torch.from_numpy(pool)] = torch.from_numpy(mixed)
        return Plan.star(view.rng.choice(pool, view.clients_per_round, p=mixed))

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh every draw by the client's share among the candidates, divided by K q_i."""
        share = torch.from_numpy(shares((view.sizes * (self.drawn_ > 0)).numpy()))
        return updates.passed_on(share / (view.clients_per_round * self.drawn_))

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Move each distribution towards the clients with large updates, favouring small variance."""
        clients = updates.clients.numpy()
        squares = shares(view.sizes.numpy())[clients] ** 2 * squared_norms(updates.deltas)
        finite = np.isfinite(squares)
        clients, squares = clients[finite], squares[finite]
        self.largest_ = max(self.largest_, float(squares.max(initial=0.0)))
        if self.largest_ == 0.0:
            return
        count, number, rounds = view.clients_per_round, len(self.drawn_), view.rounds
        expert, drawn = self.expert_.numpy(), self.drawn_.numpy()
        feedback = np.zeros(number)
        np.add.at(feedback, clients, squares / (count**2 * drawn[clients]))
        unit = count**2 * self.alpha**3 / (number**3 * self.largest_)
        unit *= math.sqrt(math.log(number) / (2 * rounds))
        rates = unit * 2.0 ** np.arange(len(expert)) if self.eta is None else np.array([unit * self.eta])
        logarithms = np.log(expert) + rates[:, None] * feedback / expert**2
        floor = self.alpha / number
        self.expert_ = torch.from_numpy(np.stack([floored(row, floor) for row in logarithms]))
        if self.eta is None:
            patience = floor * math.sqrt(8 * count / (rounds * self.largest_))
            log_trust = np.log(self.trust_.numpy()) - patience * (feedback / expert).sum(axis=1)
            trust = np.exp(log_trust - log_trust.max()).clip(1e-300)
            self.trust_ = torch.from_numpy(trust / trust.sum())

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the distribution of the last round."""
        return [Diagnostic("probability", "client", self.drawn_.numpy()[clients])]


def experts(clients: int, rounds: int, alpha: float) -> int:
    """Return how many learning rates Ada-OSMD weighs, >= 1."""
    if clients < 2:
        return 1
    spread = 4 * (rounds - 1) * math.log(clients / alpha) / math.log(clients)
    return math.ceil(0.5 * math.log2(1 + spread)) + 1


def floored(log_weights: np.ndarray, floor: float) -> np.ndarray:
    """Project weights onto the distributions that are nowhere below a floor, by relative entropy.

    Args:
        log_weights: Logarithms, float64 ``[N]``.
        floor: Smallest probability, at most 1/N.

    Returns:
        q, float64 ``[N]``, sum one: max(floor, c weight) for the c that makes it so.
    """
    weights = np.exp(log_weights - log_weights.max())
    order = np.argsort(weights, kind="stable")
    ascending = weights[order]
    rest = np.cumsum(ascending[::-1])[::-1]  # of an item and all larger ones
    scale = (1 - floor * np.arange(len(weights))) / rest
    first = int(np.flatnonzero(scale * ascending >= floor * (1 - 1e-12))[0])
    found = np.full(len(weights), floor)
    found[order[first:]] = scale[first] * ascending[first:]
    total: float = found.sum()
    return found / total
