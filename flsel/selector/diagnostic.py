"""What a selector believes about clients, to be looked at when a run is over; nothing in a run reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flsel.arguments import Checked, shown
from flsel.errors import UserError, users_code

Kind = Literal["client", "entropy", "pair", "visit"]
"""How a diagnostic is kept and drawn.

``client``: a number a client, over the rounds. ``entropy``: the same, an estimate of the client's label
entropy in nats, drawn against the true one. ``pair``: a number between two clients, at the end. ``visit``:
how often a client was chosen at each position, at the end.
"""


@dataclass(frozen=True)
class Diagnostic(Checked):
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
        """Tell whether the values are real numbers, of the kind's shape for so many clients."""
        try:
            values = np.asarray(self.values)
        except (RuntimeError, TypeError, ValueError):  # a tensor elsewhere, rows of unequal length
            return False
        if values.dtype.kind not in "fiub":
            return False
        shape = values.shape
        rows = len(shape) == (1 if self.over_rounds else 2) and shape[0] == clients
        return rows and (self.kind != "pair" or shape[1] == clients)

    @property
    def over_rounds(self) -> bool:
        """Whether it is kept over the rounds, or at the end alone."""
        return self.kind in ("client", "entropy")


def diagnostics_of(selector: Any, clients: np.ndarray) -> Sequence[Diagnostic]:
    """Ask a selector for its diagnostics and check them.

    Args:
        selector: The selector.
        clients: Ids of clients, int64 ``[n]``.

    Raises:
        UserError: If it raises, or returns anything but diagnostics of so many clients.
    """
    name = type(selector).__name__
    with users_code(f"diagnostics of {name} failed"):
        found = selector.diagnostics(clients)
    if not isinstance(found, list | tuple) or not all(isinstance(d, Diagnostic) for d in found):
        raise UserError(f"{name}.diagnostics must return a list of Diagnostic, got {shown(found)}.")
    wrong = next((d for d in found if not d.fits(len(clients))), None)
    if wrong is not None:
        raise UserError(
            f"{name}.diagnostics: {wrong.words!r} must be a {wrong.kind} of {len(clients)} clients, in "
            f"numbers, got {shown(wrong.values)}."
        )
    return found
