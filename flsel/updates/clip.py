"""Clip: bound the norm of each update.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: "Learning Differentially Private Recurrent Language Models",
ICLR 2018, "flat clipping".

**Deviations.** The paper clips in every local step, too. Here the end of the training is clipped once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

from flsel.arguments import Range
from flsel.params import Params
from flsel.updates._vectors import norms, scaled
from flsel.updates.update_step import Senders, UpdateStep


@final
@dataclass(eq=False)
class Clip(UpdateStep):
    """Multiply an update by min(1, S / its norm), so that its Euclidean norm is at most S.

    Attributes:
        norm: Largest norm of an update (S), over all trainable parameters.
    """

    norm: Annotated[float, Range(above=0)] = 1.0

    def bound(self, before: float) -> float:
        """Return S, or the bound before if that is smaller."""
        return min(self.norm, before)

    def on_client(self, deltas: Params, senders: Senders) -> Params:
        """Shrink the updates that are longer than S."""
        factors = (self.norm / norms(deltas)).clamp(max=1.0)
        return scaled(deltas, factors)
