"""FedCat: copies of the model travel from device to device before they are averaged.

M. Hu, T. Liu, Z. Ling, Z. Yue, M. Chen: "FedCat: Towards Accurate Federated Learning via Device
Concatenation", arXiv:2202.12751, Algorithms 1-3, Eqs. (3)-(5).

K devices train in every communication round and K rounds make a cycle, which is one plan here: K paths of K
hops. The K copies of the global model start together, copy i visits the device chosen from group
(o + i) mod K in the cycle's round o, and the copies are averaged by the examples that they have seen.

**Deviations**:

- The paper gives no values of lambda and epsilon. The defaults are ours. If you publish results, write both
  into the config.
- A count of zero makes Eq. (4) infinite, and the limit is taken: a device that was never chosen at this
  position of the cycle comes before all others. Among several the choice is random. Ties of the greedy choice
  are broken at random. At the start the paper's table has the same counts in every column, so the first
  device would always be taken.
- A group chooses among its devices that are available in that round. If there is none, the copy idles. A copy
  that idles in the whole cycle is left out.
- If fewer than K rounds are left, the last cycle is shorter, and its copies are averaged.
- If any device returns a copy with non-finite numbers, the whole copy is dropped.
- Algorithm 1 counts each round twice (lines 4 and 17). Here it is counted once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range, Tunable
from flsel.selector import IDLE, Diagnostic, Plan, Selector, View


@final
@dataclass(eq=False)
class FedCat(Selector):
    """Choose one device per group, the least used first, and chain them.

    Attributes:
        lam: Cycles between two groupings (λ): groups are drawn anew every λK rounds. The default is ours,
            because the paper gives none.
        epsilon: Probability (ε) to take the device of a group least used at this position of the cycle.
            Otherwise a device is drawn with probabilities proportional to 1 / sqrt(count). The default is
            ours, because the paper gives none.
        grouping: Choose by groups and counts; False draws K of the available devices uniformly (the paper's
            "FedCat w/ DC").
        concatenation: Chain the devices; False averages after every round (the paper's "FedCat w/ GC"). With
            neither this is FedAvg.
    """

    only_synchronous = "its plans chain clients, and only plans of one hop are asynchronous"
    lam: Annotated[int, Range(1), Tunable(1, 10)] = 1
    epsilon: Annotated[float, Range(0, 1), Tunable(0.0, 1.0)] = 0.5
    grouping: bool = True
    concatenation: bool = True

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        """Forget counts and groups; their shapes wait for the first round's K."""
        self.count_ = torch.zeros((len(sizes), 0), dtype=torch.int64)  # [N, K]
        self.groups_ = torch.zeros(len(sizes), dtype=torch.int64)  # [N], in 0..K-1

    def select(self, view: View) -> Plan:
        """Plan a cycle of K rounds, or of what is left of the run; one round without concatenation."""
        hops = min(view.clients_per_round, view.rounds - view.round) if self.concatenation else 1
        if self.grouping:
            self._regroup(view)
            self.count_ = self.count_.clone()
            groups = [np.flatnonzero(self.groups_ == group) for group in range(view.clients_per_round)]
            chosen = [self._choose(view, hop, groups) for hop in range(hops)]
        else:
            chosen = [_uniform(view, hop) for hop in range(hops)]
        paths = dispatch(chosen)
        return Plan(tuple(path for path in paths if any(client != IDLE for client in path)))

    def diagnostics(self, clients: np.ndarray) -> Sequence[Diagnostic]:
        """Return how often each device was chosen at each position of the cycle (only with groups)."""
        return [Diagnostic("visits", "visit", self.count_.numpy()[clients])] if self.grouping else []

    def _regroup(self, view: View) -> None:
        """Deal the devices to K groups whose sizes differ by one at most, every lambda K rounds."""
        clients, positions = self.count_.shape
        fresh = positions != view.clients_per_round
        if fresh:
            self.count_ = torch.zeros((clients, view.clients_per_round), dtype=torch.int64)
        if fresh or view.round % (self.lam * view.clients_per_round) == 0:
            self.groups_ = torch.from_numpy(view.rng.permutation(np.arange(clients) % view.clients_per_round))

    def _choose(self, view: View, hop: int, groups: list[np.ndarray]) -> list[int]:
        """Choose one available device per group for a round of the cycle and count it (Algorithm 3).

        Args:
            view: The first round of the cycle.
            hop: Rounds from there.
            groups: Device ids of the K groups.

        Returns:
            K device ids, IDLE for a group without an available device.
        """
        position = (view.round + hop) % view.clients_per_round
        available = _available(view, hop)
        counts = self.count_[:, position].numpy()
        chosen = []
        for group in groups:
            members = group[available[group]]
            pick = IDLE
            if len(members):
                greedy = view.rng.random() < self.epsilon
                pick = int(view.rng.choice(members, p=chances(counts[members], greedy=greedy)))
            chosen.append(pick)
        self.count_[[device for device in chosen if device != IDLE], position] += 1
        return chosen


def chances(counts: np.ndarray, *, greedy: bool) -> np.ndarray:
    """Return the chance of each device of a group to be chosen.

    Args:
        counts: How often each was chosen at this position of the cycle, int ``[n]``, n >= 1.
        greedy: Take the largest weight 1 / sqrt(count) (Eq. 4); else draw in proportion to it (Eq. 5).

    Returns:
        Float64 ``[n]``, sum one. Devices with the largest weight share the chance of the greedy choice, and
        those with count zero, whose weight is infinite, that of the draw.
    """
    least = counts.min()
    ties = greedy or least == 0
    weights: np.ndarray = (counts == least).astype(np.float64) if ties else 1.0 / np.sqrt(counts)
    weights /= weights.sum()
    return weights


def dispatch(chosen: list[list[int]]) -> list[tuple[int, ...]]:
    """Turn the devices of each round into the paths of the copies (Algorithm 2, line 3).

    Args:
        chosen: For each of H rounds a list of K entries, one per group.

    Returns:
        K paths of H entries: copy i meets entry (o + i) mod K in round o.
    """
    clients_per_round = len(chosen[0])
    return [
        tuple(entries[(offset + copy) % clients_per_round] for offset, entries in enumerate(chosen))
        for copy in range(clients_per_round)
    ]


def _available(view: View, hop: int) -> np.ndarray:
    """Return the devices that are available ``hop`` rounds from now and have examples, bool ``[N]``."""
    available = view.available if hop == 0 else view.available_at(hop)
    able = available & (view.sizes > 0)
    mask: np.ndarray = (able if able.any() else available).numpy()
    return mask


def _uniform(view: View, hop: int) -> list[int]:
    """Draw K distinct available devices; IDLE takes the places, drawn too, of those that are missing."""
    pool = np.flatnonzero(_available(view, hop))
    drawn = np.full(view.clients_per_round, IDLE)
    count = min(view.clients_per_round, len(pool))
    places = view.rng.permutation(view.clients_per_round)[:count]
    drawn[places] = view.rng.choice(pool, count, replace=False)
    chosen: list[int] = drawn.tolist()
    return chosen
