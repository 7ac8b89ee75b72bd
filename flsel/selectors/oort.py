"""Oort: draw clients by utility, which is smaller for slow devices, and explore fast ones.

F. Lai, X. Zhu, H. V. Madhyastha, M. Chowdhury: "Oort: Efficient Federated Learning via Guided Participant
Selection", OSDI 2021 (arXiv:2010.06081), Algorithm 1; code SymbioticLab/Oort and SymbioticLab/FedScale.

**Deviations**:

- The paper's text was not available. Its rules are those on which three independent descriptions agree.
- From the paper: the cut-off is taken at the rank of the exploited clients (the code takes one rank lower),
  and exploration decays after each round.
- From the code: utilities are scaled to about [0, 1] before the bonus for staleness is added (``normalise``).
  Without this the bonus is negligible, because utilities are in the hundreds. The preferred duration is a
  percentile of all clients' durations. Explorers are drawn by examples and speed from the heaviest five per
  place.
- The losses are those of the received model on the examples that a client trains on. A real client would take
  them from the first pass of its training, when the model has already changed.
- A report that is not finite is dropped, and its client stays unexplored. A client that came too late counts
  as explored, with the mean utility of the round's participants.
- At most 30 % of the clients are left out because they were chosen too often, and none if no other client is
  available. If too few clients are unexplored, more are exploited.
- Not copied from the code: explorers that stay chosen for ever once all clients are explored, utilities of
  one mini-batch only, and failures if few clients are available.
- Updates are weighted by examples. The code weighs them equally.
- Over-commitment is a setting of the run: ``time.over_selection``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.selector import Diagnostic, Need, Plan, Selector, Updates, View
from flsel.selectors import _oort
from flsel.selectors._sampling import fill_up, successive, with_examples, without

_WINDOW = 5.0  # Clients per explorer that are drawn from.


@final
@dataclass(eq=False)
class Oort(Selector):
    """Exploit clients with large losses that are fast enough, and explore unknown ones.

    The utility of a client is its number of examples times the root mean square of their losses. Clients
    slower than the preferred duration T lose the factor (T / duration)^``penalty``.

    Attributes:
        exploration: Share of the cohort that is explored in the first round (epsilon).
        exploration_decay: Factor on that share after each round.
        exploration_floor: Smallest share.
        penalty: Exponent of the penalty for slow clients (alpha); 0 needs no devices.
        window: Rounds in a window of the pacer (W).
        percentile: Percentile of all clients' durations that is the preferred duration at first; 100
            prefers none.
        percentile_step: Change of the percentile; 0 keeps it.
        cutoff: Share of the smallest exploited score that admits a client to the draw (c).
        clip: Quantile at which utilities are clipped.
        most_turns: Largest number of rounds in which a client is chosen; null means no limit.
        normalise: Scale the utilities to about [0, 1].
        pacer: ``flat``, the published code's: the percentile grows where a window achieved as much as the one
            before, and shrinks where it achieved six times as much. ``falling``, the paper's: T is a number
            of seconds, at first the duration at ``percentile``, and grows by as much again after each round
            whose window achieved less than the one before.
    """

    only_synchronous = "its pacer and its exploration count joint cohorts: Pisces is its asynchronous form"
    exploration: Annotated[float, Range(above=0, high=1), Tunable(0.3, 1.0)] = 0.9
    exploration_decay: Annotated[float, Range(above=0, high=1), Tunable(0.9, 1.0)] = 0.98
    exploration_floor: Annotated[float, Range(0, 1), Tunable(0.0, 0.5)] = 0.2
    penalty: Annotated[float, Range(0), Tunable(0.0, 4.0)] = 2.0
    _: KW_ONLY
    window: Annotated[int, Range(1), Tunable(5, 50, log=True)] = 20
    percentile: Annotated[float, Range(above=0, high=100), Tunable(5.0, 100.0)] = 30.0
    percentile_step: Annotated[float, Range(0, 100), Tunable(0.0, 20.0)] = 5.0
    cutoff: Annotated[float, Range(above=0, high=1), Tunable(0.05, 1.0)] = 0.95
    clip: Annotated[float, Range(above=0, high=1)] = 0.95
    most_turns: Annotated[int | None, Range(1)] = None
    normalise: bool = True
    pacer: Literal["flat", "falling"] = "flat"

    @property
    def needs(self) -> Need:
        """Losses of the participants, and durations unless ``penalty`` is 0."""
        return Need.SQUARED_LOSS | Need.DURATIONS if self.penalty > 0 else Need.SQUARED_LOSS

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget all reports."""
        # NaN: nothing reported yet.
        self.utility_ = torch.full((len(sizes),), math.nan, dtype=torch.float64)
        self.duration_ = self.utility_.clone()
        self.last_ = torch.zeros(len(sizes), dtype=torch.int64)
        self.turns_ = self.last_.clone()
        self.exploited_ = self.last_[:0].clone()
        self.achieved_: list[float] = []
        self.rounds_ = 0
        self.percentile_ = float(self.percentile)
        self.preferred_ = self.step_ = 0.0  # not known yet

    def select(self, view: View) -> Plan:
        """Draw the exploited clients by score, then explorers by examples and speed."""
        round, pool = view.round + 1, with_examples(view.pool, view.sizes)
        if self.most_turns is not None:
            left = without(pool, np.intersect1d(pool, _oort.blocked(self.turns_.numpy(), self.most_turns)))
            pool = left if len(left) else pool
        durations, preferred = self._durations(view)
        share = _oort.epsilon(round, self.exploration, self.exploration_decay, self.exploration_floor)
        known = self.utility_.isfinite().numpy()[pool]
        old, new = pool[known], pool[~known]
        exploit, explore = _oort.split(view.clients_per_round, share)
        explore = min(len(new), explore)
        exploit = min(len(old), view.clients_per_round - explore)
        explore = min(len(new), view.clients_per_round - exploit)
        factors = _oort.system(durations, preferred, self.penalty)
        exploited = self._exploited(old, exploit, round, factors[old], view)
        weights = view.examples.numpy()[new] * factors[new]
        drawn = _drawn(weights, _oort.explored(weights, explore, _WINDOW), explore, view.rng)
        self.exploited_ = torch.from_numpy(np.sort(exploited))
        return Plan.star(np.concatenate([exploited, new[drawn]]))

    def observe(self, view: View, updates: Updates, weights: Tensor) -> None:
        """Store what the participants report, and let the pacer look at what was achieved."""
        round = view.round + 1
        found = torch.from_numpy(
            _oort.utilities(view.examples[updates.clients].double().numpy(), updates.squared_loss.numpy())
        )
        finite = found.isfinite()
        reporting, utility = updates.clients[finite], found[finite]
        durations = updates.durations[finite] if Need.DURATIONS in self.needs else None
        self._store(reporting, utility, durations, round)
        late = updates.late
        if len(late.clients) and len(utility):
            timed = late.durations if durations is not None else None
            self._store(late.clients, utility.mean().expand(len(late.clients)), timed, round)
        exploited = torch.isin(reporting, self.exploited_)
        achieved = float(utility[exploited].mean()) if bool(exploited.any()) else 0.0
        self._pace(achieved)

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return the utilities that were last reported; NaN where none was."""
        return [Diagnostic("utility", "client", self.utility_.numpy()[clients])]

    def _durations(self, view: View) -> tuple[np.ndarray, float]:
        """Return every client's last or estimated duration, float64 ``[N]``, and the preferred one."""
        found = self.duration_.numpy().copy()
        if self.penalty == 0:
            return np.zeros(len(found)), math.inf
        unknown = np.flatnonzero(np.isnan(found))
        found[unknown] = view.durations(unknown.tolist()).numpy()
        if self.pacer == "falling" and self.preferred_ == 0:
            self.preferred_ = self.step_ = _oort.preferred_duration(found, self.percentile)
        if self.pacer == "falling":
            return found, self.preferred_
        return found, _oort.preferred_duration(found, self.percentile_)

    def _exploited(
        self, clients: np.ndarray, count: int, round: int, factors: np.ndarray, view: View
    ) -> np.ndarray:
        """Draw explored clients by their scores."""
        if count == 0:
            return clients[:0]
        utility = self.utility_.numpy()[clients]
        base = _oort.normalised(utility, self.clip) if self.normalise else _oort.clipped(utility, self.clip)
        scores = (base + _oort.staleness(round, self.last_.numpy()[clients])) * factors
        where = _drawn(scores, _oort.admitted(scores, count, self.cutoff), count, view.rng)
        found: np.ndarray = clients[where]
        return found

    def _store(self, clients: Tensor, utility: Tensor, durations: Tensor | None, round: int) -> None:
        self.utility_ = self.utility_.index_put((clients,), utility)
        self.last_ = self.last_.index_fill(0, clients, round)
        self.turns_ = self.turns_.index_add(0, clients, torch.ones_like(clients))
        if durations is not None:
            self.duration_ = self.duration_.index_put((clients,), durations)

    def _pace(self, achieved: float) -> None:
        self.rounds_ += 1
        self.achieved_ = [*self.achieved_, achieved][-2 * self.window :]
        if self.pacer == "falling":
            self.preferred_ = _oort.relaxed(self.preferred_, self.achieved_, self.window, self.step_)
        elif self.rounds_ % self.window == 0 and self.percentile_step > 0:
            self.percentile_ = _oort.paced(
                self.percentile_, self.achieved_, self.window, self.percentile_step
            )


def _drawn(weights: np.ndarray, where: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw distinct positions among ``where`` by weight; those without weight come last, uniformly."""
    with np.errstate(divide="ignore"):
        chosen = where[successive(np.log(np.maximum(weights[where], 0.0)), count, rng)]
    return fill_up(chosen, where, count, rng)
