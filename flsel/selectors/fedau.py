"""FedAU: weigh updates by the rounds between their clients' participations, with any selector.

S. Wang, M. Ji: "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging",
ICLR 2024 (arXiv:2306.03401), Algorithm 2, with the authors' code.

**Deviations**:

- The clients' shares p_i of the examples replace 1/N. ``shares: equal`` is the paper.
- A client takes part where its update is aggregated, as in the code: one that was asked and came too late,
  or sent no finite model, stays away. The code's default of ``cutoff`` is 100,000.
- A selector is refused if its plans have several hops, or if some of its participants send no update. The
  weight of such an update is not defined.
- The weights of the inner selector are not used. They are still computed, because it may learn from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.errors import UserError
from flsel.selector import Diagnostic, Need, Plan, Selector, Updates, View
from flsel.selectors._sampling import shares
from flsel.selectors.uniform import Uniform


@final
@dataclass(eq=False)
class FedAU(Selector):
    """Let another selector choose, and weigh client i by p_i times the mean gap between its participations.

    A gap counts the rounds from one participation to the next, both ends as one; the present one is not known
    yet, and a client's first participation weighs p_i.

    Attributes:
        selector: The selector that chooses the cohort; null means ``Uniform``.
        cutoff: Longest gap (K); a longer absence counts as several of this length.
        shares: Share p_i of a client: ``size`` its share of all examples, ``equal`` 1/N.
    """

    only_synchronous = "its gaps count joint cohorts, whose weights they make unbiased"
    selector: Selector | None = None
    cutoff: Annotated[int, Range(1), Tunable(10, 500, log=True)] = 50
    shares: Literal["size", "equal"] = "size"

    @property
    def needs(self) -> Need:
        """What the inner selector needs."""
        return self._chooser.needs

    @property
    def _chooser(self) -> Selector:
        return Uniform() if self.selector is None else self.selector

    def _inner(self) -> Selector:
        """Return the inner selector in its present state; the argument itself keeps none."""
        inner = copy(self._chooser)
        for name, value in self.inner_.items():
            setattr(inner, name, value)
        return inner

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Check the inner selector, whose participants must all send their update."""
        if self._chooser.two_phase:
            raise UserError(
                "selector.selector of FedAU must have every participant send its update, got "
                f"{type(self._chooser).__name__}."
            )
        self._chooser.check_clients_per_round(clients_per_round)

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all participations, and what the inner selector learned."""
        inner = copy(self._chooser)
        inner.reset(sizes, num_classes)
        self.inner_ = inner.state_dict()
        self.away_ = torch.zeros(len(sizes), dtype=torch.int64)
        # Closed gaps of every client, and the sum of their lengths.
        self.gaps_ = torch.zeros(len(sizes), dtype=torch.int64)
        self.length_ = torch.zeros(len(sizes), dtype=torch.int64)

    def select(self, view: View) -> Plan:
        """Let the inner selector choose."""
        inner = self._inner()
        plan = inner.select(view)
        self.inner_ = inner.state_dict()
        if plan.hops > 1:
            raise UserError(
                "selector.selector of FedAU must have plans of one hop, got "
                f"{type(inner).__name__}, which chains {plan.hops} clients."
            )
        return plan

    def weigh(self, view: View, updates: Updates) -> Tensor:
        """Weigh every client by its share times its mean gap; one that is on several paths, once in all."""
        share = torch.from_numpy(
            shares(view.sizes.numpy() if self.shares == "size" else np.ones(len(view.sizes)))
        )
        paths = torch.bincount(updates.clients, minlength=len(share))
        return (share * self._mean_gaps())[updates.clients] / paths[updates.clients]

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Let the inner selector learn, and count the participations."""
        inner = self._inner()
        inner.observe(view, updates, inner.weigh(view, updates))
        self.inner_ = inner.state_dict()
        there = torch.zeros(len(self.away_), dtype=torch.bool)
        there[updates.clients] = True
        away = self.away_ + 1
        closed = there | (away >= self.cutoff)
        self.gaps_ = self.gaps_ + closed
        self.length_ = self.length_ + torch.where(closed, away, 0)
        self.away_ = torch.where(closed, 0, away)

    def _mean_gaps(self) -> Tensor:
        """Return the mean of each client's closed gaps, in rounds; one where none is closed."""
        return torch.where(self.gaps_ > 0, self.length_.double() / self.gaps_.clamp(min=1), 1.0)

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the mean gaps, and the diagnostics of the inner selector."""
        own = Diagnostic("mean gap", "client", self._mean_gaps().numpy()[clients], "rounds")
        return [own, *self._inner().diagnostics(clients)]
