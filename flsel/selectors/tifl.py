"""TiFL: train clients of one speed tier at a time, and prefer tiers with large losses.

Z. Chai, A. Ali, S. Zawad, S. Truex, A. Anwar, N. Baracaldo, Y. Zhou, H. Ludwig, F. Yan, Y. Cheng: "TiFL: A
Tier-based Federated Learning System", HPDC 2020 (arXiv:2001.09249), Algorithm 2.

**Deviations**:

- The paper's text was not available. The rule was written from memory, and one independent implementation has
  the same probabilities.
- A tier's mean training loss replaces its accuracy on test data. It is asked every ``interval`` rounds of all
  available clients in the tier, and charged. A tier with a smaller loss counts as better served. A mean that
  is not known counts as the largest loss.
- The paper gives each tier a number of credits and does not fix it. Public codes cap each of m tiers at about
  T/m of T rounds. Here null gives no limit. If no tier with credits has an available client, credits are
  ignored.
- The paper's server profiles clients by a training before the first round. Here the durations are those of
  the device profiles, and knowing them costs no time and no bytes.
- Draws are without replacement (one published port draws with replacement) and among the clients available
  now. A tier without an available client cannot be drawn. A tier with too few gives fewer clients.
- Clients without examples are in no tier, unless no client has examples. Tiers differ by at most one client
  in size.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable, shown
from flsel.errors import UserError
from flsel.selector import Need, Plan, Selector, View
from flsel.selectors._sampling import with_examples


@final
@dataclass(eq=False)
class TiFL(Selector):
    """Draw a tier of equally fast clients, then K of them uniformly.

    Attributes:
        tiers: Number of tiers (m).
        interval: Rounds between two measurements of the tiers' losses (I).
        policy: ``adaptive`` changes the tiers' probabilities where the loss of the last tier did not fall;
            ``uniform`` keeps them equal; ``fast`` and ``slow`` always take the fastest or the slowest tier
            that has an available client.
        credits: Number of rounds in which each tier may be drawn, fastest tier first; null means no limit.
    """

    only_synchronous = "it trains the clients of one tier together"
    tiers: Annotated[int, Range(1), Tunable(2, 10)] = 5
    _: KW_ONLY
    interval: Annotated[int, Range(1), Tunable(2, 50, log=True)] = 10
    policy: Literal["adaptive", "uniform", "fast", "slow"] = "adaptive"
    credits: Annotated[tuple[int, ...] | None, Range(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.credits is not None and len(self.credits) != self.tiers:
            raise UserError(
                f"credits must be as many whole numbers as tiers ({self.tiers}), got {shown(self.credits)}."
            )

    @property
    def needs(self) -> Need:
        """Durations, and losses where the probabilities follow them."""
        return Need.DURATIONS | Need.LOSSES if self.policy == "adaptive" else Need.DURATIONS

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget tiers, losses and probabilities."""
        self.tier_ = torch.full((len(sizes),), -1, dtype=torch.int64)
        self.probability_ = torch.full((self.tiers,), 1.0 / self.tiers, dtype=torch.float64)
        # -1: no limit.
        limit = [-1] * self.tiers if self.credits is None else list(self.credits)
        self.credit_ = torch.tensor(limit, dtype=torch.int64)
        self.loss_ = torch.full((self.tiers,), math.nan, dtype=torch.float64)
        self.current_ = -1

    def select(self, view: View) -> Plan:
        """Draw a tier and clients of it."""
        if int(self.tier_.max()) < 0:
            everyone = with_examples(np.arange(len(view.sizes)), view.sizes)
            self.tier_ = torch.full_like(self.tier_, -1)
            self.tier_[torch.from_numpy(everyone)] = torch.from_numpy(
                tiers_of(view.durations(everyone.tolist()).numpy(), self.tiers)
            )
        if self.policy == "adaptive" and view.round % self.interval == 0:
            self._look(view)
        tier = self.tier_.numpy()[view.pool]
        present = np.bincount(tier[tier >= 0], minlength=self.tiers) > 0
        if not present.any():
            return Plan.star(view.rng.permutation(view.pool)[: view.clients_per_round])
        self.current_ = self._drawn(present, view.rng)
        if int(self.credit_[self.current_]) > 0:
            self.credit_ = self.credit_.index_add(0, torch.tensor([self.current_]), torch.tensor([-1]))
        clients = view.pool[tier == self.current_]
        return Plan.star(view.rng.permutation(clients)[: view.clients_per_round])

    def _look(self, view: View) -> None:
        """Ask for the tiers' losses, and change the probabilities where the last tier's did not fall."""
        asked = view.pool[self.tier_.numpy()[view.pool] >= 0]
        losses, tier = view.losses(asked.tolist()).numpy(), self.tier_.numpy()[asked]
        sizes, finite = view.sizes.numpy()[asked], np.isfinite(losses)
        totals = np.bincount(tier[finite], (sizes * losses)[finite], minlength=self.tiers)
        counts = np.bincount(tier[finite], sizes[finite], minlength=self.tiers)
        new = np.where(counts > 0, totals / np.maximum(counts, 1), math.nan)
        before = float(self.loss_[self.current_]) if self.current_ >= 0 else math.nan
        if self.current_ >= 0 and not new[self.current_] < before:
            has_credit = self.credit_.numpy() != 0
            self.probability_ = torch.from_numpy(probabilities(new, has_credit))
        self.loss_ = torch.from_numpy(new)

    def _drawn(self, present: np.ndarray, rng: np.random.Generator) -> int:
        if self.policy in ("fast", "slow"):
            able = np.flatnonzero(present)
            return int(able[0] if self.policy == "fast" else able[-1])
        able = present & (self.credit_.numpy() != 0)
        chance = self.probability_.numpy() * (able if able.any() else present)
        if not chance.any():
            chance = (able if able.any() else present).astype(np.float64)
        return int(rng.choice(self.tiers, p=chance / chance.sum()))


def tiers_of(durations: np.ndarray, tiers: int) -> np.ndarray:
    """Return the tier of each client, 0 the fastest, int64 ``[n]``; ties go by position."""
    order = np.argsort(durations, kind="stable")
    found = np.empty(len(order), dtype=np.int64)
    for tier, members in enumerate(np.array_split(order, tiers)):
        found[members] = tier
    return found


def probabilities(losses: np.ndarray, has_credit: np.ndarray) -> np.ndarray:
    """Return the tiers' probabilities by rank: of m tiers with credits the j-th worst has (m + 1 - j) parts.

    Args:
        losses: Mean loss of each tier, float64 ``[m]``; NaN counts as the largest.
        has_credit: Tiers that may still be drawn, bool ``[m]``; where none may, all count.
    """
    able = np.flatnonzero(has_credit) if has_credit.any() else np.arange(len(losses))
    worst_first = able[np.argsort(-np.where(np.isnan(losses), np.inf, losses)[able], kind="stable")]
    parts = np.zeros(len(losses))
    parts[worst_first] = np.arange(len(able), 0, -1)
    found: np.ndarray = parts / parts.sum()
    return found
