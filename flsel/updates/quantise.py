"""Quantise: send the numbers of an update with few bits.

D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic: "QSGD: Communication-Efficient SGD via Gradient
Quantization and Encoding", NeurIPS 2017.

**Deviations.** The scale is the largest magnitude of the update, as in the authors' experiments, instead of
its norm. Each number takes the same number of bits. There is no Elias coding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, final

import numpy as np
import torch
from torch import Tensor

from flsel.arguments import Range
from flsel.params import Params
from flsel.selector.client_rows import allocate
from flsel.updates._vectors import as_rows, as_stack, with_feedback
from flsel.updates.update_step import Message, Senders, UpdateStep

SCALE_BYTES = 4


@final
@dataclass(eq=False)
class Quantise(UpdateStep):
    """Round each number of an update at random to one of 2^bits - 1 levels, so that its mean is kept.

    The levels are spread evenly from minus to plus the largest magnitude of the client's update. The update
    costs ``bits`` for each number, and 4 bytes for the scale.

    Attributes:
        bits: Bits of a number, its sign included.
        feedback: Whether a client adds the error of the rounding to its next update (error feedback).
    """

    bits: Annotated[int, Range(2, 16)] = 8
    feedback: bool = False

    @property
    def remembers(self) -> bool:
        """Whether clients keep the error of the rounding."""
        return self.feedback

    def reset(self, params: Params, clients: int) -> None:
        """Start without errors."""
        if self.feedback:
            self.slots_, self.errors_ = allocate(params, clients)

    def on_client(self, deltas: Params, senders: Senders) -> Params:
        """Round each client's update by its own draws."""
        compress = partial(self._rounded, draws=senders.generators("quantise"))
        if self.feedback:
            return with_feedback((self.slots_, self.errors_), senders.clients, deltas, compress)
        return as_stack(compress(as_rows(deltas)), deltas)

    def message(self, before: Message) -> Message:
        """Return as many numbers of ``bits`` bits, and the scale."""
        return replace(before, bits=min(self.bits, before.bits), beside=before.beside + SCALE_BYTES)

    def _rounded(self, updates: Tensor, *, draws: list[np.random.Generator]) -> Tensor:
        most = 2 ** (self.bits - 1) - 1
        unit = updates.double().abs().amax(dim=1, keepdim=True) / most
        at = updates.double() / torch.where(unit > 0, unit, torch.ones_like(unit))
        chance = torch.from_numpy(np.stack([rng.random(updates.shape[1]) for rng in draws])).to(at.device)
        rounded: Tensor = (at.floor() + (chance < at - at.floor())) * unit
        return rounded.to(updates.dtype)
