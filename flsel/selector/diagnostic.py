"""What a selector believes about clients, to be looked at when a run is over; nothing in a run reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["client", "entropy", "pair", "visit"]
"""How a diagnostic is kept and drawn.

``client``: a number a client, over the rounds. ``entropy``: the same, an estimate of the client's label
entropy in nats, drawn against the true one. ``pair``: a number between two clients, at the end. ``visit``:
how often a client was chosen at each position, at the end.
"""


@dataclass(frozen=True)
class Diagnostic:
    """One belief of a selector about some clients.

    Attributes:
        words: What it is, for an axis: ``estimated label entropy``.
        kind: How it is kept and drawn.
        values: Of n clients, float64 ``[n]`` (``client``, ``entropy``), ``[n, n]`` (``pair``) or ``[n, m]``
            (``visit``); NaN where nothing is known.
        unit: Their unit; empty for shares and counts.
    """

    words: str
    kind: Kind
    values: np.ndarray
    unit: str = ""

    def fits(self, clients: int) -> bool:
        """Tell whether the values have the kind's shape for so many clients."""
        shape = np.shape(self.values)
        rows = len(shape) == (1 if self.over_rounds else 2) and shape[0] == clients
        return rows and (self.kind != "pair" or shape[1] == clients)

    @property
    def over_rounds(self) -> bool:
        """Whether it is kept over the rounds, or at the end alone."""
        return self.kind in ("client", "entropy")
