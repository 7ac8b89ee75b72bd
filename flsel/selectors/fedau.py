"""FedAU: weigh updates by the rounds between their clients' participations, with any selector.

S. Wang, M. Ji: "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging",
ICLR 2024 (arXiv:2306.03401), Algorithm 2, with the authors' code.

**Deviations**:

- The clients' shares p_i of the examples replace 1/N. ``shares: equal`` is the paper.
- A client takes part where its update is aggregated, as in the code: one that was asked and came too late,
  or sent no finite model, stays away. A round in which nobody is available counts for the gaps.
- Clients that were asked and never took part have no share, since no gap tells their weight. So a deadline
  that some clients never meet does not shorten the steps.
- The code's default of ``cutoff`` is 100,000 rounds, which is none. The paper's is 50.
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
    weights_correct_for = "the rounds between a client's participations"
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

    def check_output_layer(self, *, has_bias: bool) -> None:
        """Check what the inner selector reads."""
        self._chooser.check_output_layer(has_bias=has_bias)

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all participations, and what the inner selector learned."""
        inner = copy(self._chooser)
        inner.reset(sizes, num_classes)
        self.inner_ = inner.state_dict()
        # The last round of every client that closed a gap.
        self.closed_ = torch.full((len(sizes),), -1, dtype=torch.int64)
        self.asked_ = torch.zeros(len(sizes), dtype=torch.bool)
        self.counted_ = torch.zeros(len(sizes), dtype=torch.bool)
        # Closed gaps of every client, and the sum of their lengths.
        self.gaps_ = torch.zeros(len(sizes), dtype=torch.int64)
        self.length_ = torch.zeros(len(sizes), dtype=torch.int64)

    def select(self, view: View) -> Plan:
        """Let the inner selector choose."""
        self._count(view.round - 1, torch.empty(0, dtype=torch.int64))
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
        # Of the clients that took part or may yet: an update that arrives is one of them.
        able = ~self.asked_ | self.counted_
        able[updates.clients] = True
        sizes = view.sizes if self.shares == "size" else torch.ones_like(view.sizes)
        share = torch.from_numpy(shares((sizes * able).numpy()))
        paths = torch.bincount(updates.clients, minlength=len(share))
        return (share * self._mean_gaps())[updates.clients] / paths[updates.clients]

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Let the inner selector learn, and count the participations."""
        inner = self._inner()
        inner.observe(view, updates, inner.weigh(view, updates))
        self.inner_ = inner.state_dict()
        asked = updates.clients if updates.asked is None else updates.asked
        self.asked_ = self.asked_.index_fill(0, asked, True)
        self.counted_ = self.counted_.index_fill(0, updates.clients, True)
        self._count(view.round, updates.clients)

    def _count(self, round: int, there: Tensor) -> None:
        """Close the gaps of the clients that took part in a round, and those of the cutoff's length."""
        took_part = torch.zeros(len(self.gaps_), dtype=torch.bool)
        took_part[there] = True
        away = round - self.closed_
        whole = torch.where(took_part, away - 1, away).clamp(min=0) // self.cutoff
        self.gaps_ = self.gaps_ + whole + took_part
        ends = torch.where(took_part, round, self.closed_ + whole * self.cutoff)
        self.length_ = self.length_ + ends - self.closed_
        self.closed_ = ends

    def _mean_gaps(self) -> Tensor:
        """Return the mean of each client's closed gaps, in rounds; one where none is closed."""
        return torch.where(self.gaps_ > 0, self.length_.double() / self.gaps_.clamp(min=1), 1.0)

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the mean gaps, and the diagnostics of the inner selector."""
        own = Diagnostic("mean gap", "client", self._mean_gaps().numpy()[clients], "rounds")
        return [own, *self._inner().diagnostics(clients)]
