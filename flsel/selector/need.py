"""The kinds of information that a selector may ask for."""

from __future__ import annotations

import enum

from flsel.errors import UndeclaredNeedError


class Need(enum.Flag):
    """Information that a selector declares in ``needs``; everything else is refused.

    ``LABELS``, ``OWN_LOSS``, ``HEAD`` and ``DELTAS`` are about participants or static tables; the others are
    answered on demand, at a cost that the ledger counts.
    """

    NONE = 0
    LABELS = enum.auto()
    """Label counts of every client."""
    OWN_LOSS = enum.auto()
    """A participant's loss, on its own data, of the model it received."""
    HEAD = enum.auto()
    """A participant's update of the output layer."""
    DELTAS = enum.auto()
    """A participant's whole update."""
    LOSSES = enum.auto()
    """Losses of any available clients at any model, before training."""
    SHADOW = enum.auto()
    """Local training of any available clients without aggregation."""
    SERVER_LOSS = enum.auto()
    """Loss of any model on the server's holdout."""
    GRADIENTS = enum.auto()
    """Gradients of any available clients' losses at the global model, before training."""
    NOISE_OUTPUTS = enum.auto()
    """Mean outputs of any models on Gaussian noise shaped like the server's holdout."""
    TRUE_MODELS = enum.auto()
    """The models that labelled the clients' examples, which only generated data have."""


ON_HOLDOUT = Need.SERVER_LOSS | Need.NOISE_OUTPUTS
"""What is answered with the server's holdout, which the run must then have."""


def require(declared: Need, need: Need) -> None:
    """Refuse what a selector did not declare.

    Raises:
        UndeclaredNeedError: If it did not.
    """
    if need not in declared:
        raise UndeclaredNeedError(
            f"the selector asked for {need.name} without declaring it; add Need.{need.name} to its `needs`."
        )
