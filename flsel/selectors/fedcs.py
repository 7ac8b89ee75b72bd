"""FedCS: as many clients as a deadline allows, fast ones first.

T. Nishio, R. Yonetani: "Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge",
ICC 2019 (arXiv:1804.08333), Algorithm 3.

**Deviations**:

- The paper's text was not available. The rule was written from memory, and one independent implementation has
  the same rule.
- Durations are those of the device profiles: delay and download, computing, upload. The time for selecting
  and for aggregating is ``overhead``.
- Candidates are the clients available now that have examples, at most ``candidates`` of them, drawn
  uniformly. Ties go by client id.
- If no client meets the deadline, the one that would finish first trains.
- The deadline decides which clients are chosen. ``time.deadline`` decides whether the server waits for a late
  client.
- Uploads in parallel (``uploads``) are not in the paper. The simulated clock lets clients upload in parallel,
  whatever ``uploads`` is. So a cohort that is planned with the paper's sequential uploads ends earlier than
  ``deadline``, and ``parallel`` plans what the clock does.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, final

import numpy as np

from flsel.arguments import Range, Tunable
from flsel.selector import Need, Plan, Selector, View
from flsel.selectors._sampling import with_examples


@final
@dataclass(eq=False)
class FedCS(Selector):
    """Add the client that takes the least additional time, as long as the deadline holds.

    Attributes:
        deadline: Simulated seconds that a round may take by the profiles (T_round).
        uploads: ``sequential``: clients upload one after another, as in the paper; ``parallel``: they do not
            wait for each other.
        candidates: Number of clients that are asked for their resources; null means all.
        overhead: Seconds that selecting and aggregating take (T_cs + T_agg).
    """

    only_synchronous = "it fills a cohort up to a deadline"
    needs = Need.DURATIONS
    deadline: Annotated[float, Range(above=0), Tunable(1.0, 1000.0, log=True)] = 180.0
    _: KW_ONLY
    uploads: Literal["sequential", "parallel"] = "sequential"
    candidates: Annotated[int | None, Range(1)] = None
    overhead: Annotated[float, Range(0)] = 0.0

    def select(self, view: View) -> Plan:
        """Choose greedily by the profiles."""
        pool = with_examples(view.pool, view.sizes)
        if self.candidates is not None and self.candidates < len(pool):
            pool = np.sort(view.rng.choice(pool, self.candidates, replace=False))
        else:
            pool = np.sort(pool)
        chosen = fit_into_deadline(
            view.parts(pool.tolist()).numpy(),
            self.deadline - self.overhead,
            most=view.clients_per_round,
            parallel=self.uploads == "parallel",
        )
        return Plan.star(pool[chosen])


def fit_into_deadline(parts: np.ndarray, deadline: float, *, most: int, parallel: bool = False) -> list[int]:
    """Return the clients that fit, in the order in which they are added; at least one.

    Each is tried once: it takes the growth of the slowest download, then its upload, which waits for the ones
    before and for its own computing.

    Args:
        parts: Seconds of download, computing and upload, float64 ``[n, 3]``.
        deadline: What download and uploads may take together.
        most: Most clients.
        parallel: Whether clients do not wait for each other's uploads.
    """
    down, computing, up = parts.T
    if parallel:
        order = np.argsort(parts.sum(axis=1), kind="stable")
        fits = order[parts.sum(axis=1)[order] < deadline]
        return [int(client) for client in (fits if len(fits) else order[:1])[:most]]
    left = np.arange(len(parts))
    chosen, slowest, busy = list[int](), 0.0, 0.0
    while len(left) and len(chosen) < most:
        growth = np.maximum(down[left] - slowest, 0.0)
        more = up[left] + np.maximum(computing[left] - busy, 0.0)
        best = int((growth + more).argmin())
        client = int(left[best])
        left = np.delete(left, best)
        if max(slowest, down[client]) + busy + more[best] < deadline:
            chosen.append(client)
            slowest, busy = max(slowest, float(down[client])), busy + float(more[best])
    return chosen or [int(parts.sum(axis=1).argmin())]
