"""Signals are heeded between rounds, so that what is saved is whole."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType

_LOG = logging.getLogger("flsel")


class Interrupt:
    """Remember a SIGINT, SIGTERM or SIGHUP instead of acting on it; a second one stops at once.

    A signal that the process was told to ignore stays ignored, as under ``nohup``.

    Attributes:
        requested: Whether a signal has come.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
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
