"""Private names of Lightning that flsel uses. It runs without them."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Timer

_LOG = logging.getLogger("flsel")


def interval_of(timer: Timer) -> str:
    """Return after what a timer looks at the clock: ``step`` or ``epoch``; ``epoch`` if it does not tell."""
    if not hasattr(timer, "_interval"):
        _warn("Timer._interval: a Timer with interval: step is accepted, and never ends a run")
    return str(getattr(timer, "_interval", "epoch"))


def leave_signals(trainer: Any) -> None:
    """Let a Trainer handle no signals, since a signal ends a run after its round."""
    connector: Any = getattr(trainer, "_signal_connector", None)
    if connector is None:
        _warn("Trainer._signal_connector: a signal ends the training of a client with an error")
        return
    connector.register_signal_handlers = lambda: None


@functools.cache
def _warn(what: str) -> None:
    """Say once in a process what is missing, and what follows."""
    import lightning

    _LOG.warning("lightning %s has no %s", lightning.__version__, what)
