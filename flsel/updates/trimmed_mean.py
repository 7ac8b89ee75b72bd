"""TrimmedMean: the mean of each number without its smallest and largest values.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018, Option II of Algorithm 1.

**Deviations.** The paper's workers send gradients. Here they send updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

from flsel.arguments import Range
from flsel.params import Params, height
from flsel.updates.aggregate import Aggregate


@final
@dataclass(frozen=True)
class TrimmedMean(Aggregate):
    """Leave out the smallest and the largest values of each number, and take the mean of the others.

    Attributes:
        share: Share of the updates that is left out at each end, rounded down to a number of updates.
    """

    share: Annotated[float, Range(0, below=0.5)] = 0.2

    def join(self, deltas: Params) -> Params:
        """Return the trimmed mean of each number."""
        count = height(deltas)
        # 0.29 of 100 is 29, which floating point makes 28.999999999999996.
        cut = int(self.share * count + 1e-9)
        ordered = {name: value.sort(dim=0).values for name, value in deltas.items()}
        return {name: value[cut : count - cut].mean(dim=0) for name, value in ordered.items()}
