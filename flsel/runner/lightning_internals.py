"""Private names of Lightning that flsel uses. It runs without them."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Timer

_LOG = logging.getLogger("flsel")


def interval_of(timer: Timer) -> str:
    """Return after what a timer looks at the clock: ``step`` or ``epoch``; ``epoch`` if it does not tell."""
    if not hasattr(timer, "_interval"):
        _warn()
    return str(getattr(timer, "_interval", "epoch"))


@functools.cache
def _warn() -> None:
    """Say once in a process what is not checked."""
    import lightning

    _LOG.warning(
        "lightning %s has no Timer._interval: a Timer with interval: step is accepted, and never ends a run",
        lightning.__version__,
    )
