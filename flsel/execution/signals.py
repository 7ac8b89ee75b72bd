"""Signals are heeded between rounds, so that what is saved is whole."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

_LOG = logging.getLogger("flsel")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        if _in_main_thread():
            for number in _SIGNALS:
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


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Have SIGTERM and SIGHUP stop the block as Ctrl-C does; by default they, or Ray's handler, just exit."""
    with signals_kept():
        for number in (signal.SIGTERM, signal.SIGHUP) if _in_main_thread() else ():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not callable(signal.getsignal(signal.SIGINT)):  # ignored, as in what a shell started in the background
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces.

    Its handler of SIGTERM would end this process, and Tune's of SIGINT would lose the next Ctrl-C.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS} if _in_main_thread() else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
