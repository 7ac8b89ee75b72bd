"""Median: the median of each number.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018, Option I of Algorithm 1.

**Deviations.** The paper's workers send gradients. Here they send updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from flsel.params import Params, height
from flsel.updates.aggregate import Aggregate


@final
@dataclass(frozen=True)
class Median(Aggregate):
    """Take the median of each number over the updates; of an even number the mean of the middle two."""

    def join(self, deltas: Params) -> Params:
        """Return the median of each number."""
        low, high = (height(deltas) - 1) // 2, height(deltas) // 2
        ordered = {name: value.sort(dim=0).values for name, value in deltas.items()}
        return {name: (value[low] + value[high]) / 2 for name, value in ordered.items()}
