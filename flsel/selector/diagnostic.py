"""A selector's estimates about clients, for reports. They do not affect the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flsel.arguments import Checked, shown
from flsel.errors import UserError, users_code

Kind = Literal["client", "entropy", "pair", "visit"]
"""How a diagnostic is kept and drawn.

``client``: one number per client, over the rounds. ``entropy``: the same, as an estimate of the client's
label entropy in nats, which is drawn against the true entropy. ``pair``: one number per pair of clients, at
the end. ``visit``: how often a client was chosen at each position, at the end.
"""


@dataclass(frozen=True)
class Diagnostic(Checked):
    """One kind of estimate about some clients.

    Attributes:
        words: Label of an axis, such as ``estimated label entropy``.
        kind: How it is kept and drawn.
        values: For n clients, float64 ``[n]`` (``client``, ``entropy``), ``[n, n]`` (``pair``) or ``[n, m]``
            (``visit``); NaN for unknown values.
        unit: Unit of the values; empty for shares and counts.
    """

    words: str
    kind: Kind
    values: np.ndarray
    unit: str = ""

    def fits(self, clients: int) -> bool:
        """Return whether the values are real numbers in the kind's shape for so many clients."""
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
        """Whether it is kept over the rounds instead of at the end only."""
        return self.kind in ("client", "entropy")


def diagnostics_of(selector: Any, clients: np.ndarray) -> Sequence[Diagnostic]:
    """Ask a selector for its diagnostics about clients, int64 ``[n]``, and check them.

    Raises:
        UserError: If the selector raises, or returns anything but diagnostics of so many clients.
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
