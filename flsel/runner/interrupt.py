"""Ctrl-C between rounds, so that what is saved is whole."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType

_LOG = logging.getLogger("flsel")


class Interrupt:
    """Remember a SIGINT or SIGTERM instead of acting on it; a second one stops at once.

    Attributes:
        requested: Whether a signal has come.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        _LOG.warning("stopping after this round; press Ctrl-C again to stop at once")
