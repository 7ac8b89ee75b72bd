"""One front for all trackers of a run, behind which they may fail.

A tracker is a sink. Whatever goes wrong in one is said once, and the run goes on without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flsel.runner.trackers.sinks import Sink, as_image, sink_of
from flsel.runner.trackers.wandb_run import one_line

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger
    from matplotlib.figure import Figure

_LOG = logging.getLogger("flsel")


class Tracker:
    """A safe front of loggers: a logger that fails is reported in one line and dropped. The run continues.

    Args:
        loggers: Lightning loggers, such as :func:`flsel.runner.trackers.loggers.make_loggers` returns.
        settings: Hyper-parameters for the loggers that store them; W&B's run has them already.
    """

    def __init__(self, loggers: Sequence[Logger], settings: Mapping[str, Any] | None = None) -> None:
        self._sinks = [sink_of(logger) for logger in loggers]
        self._each(lambda sink: sink.settings(settings or {}))

    @property
    def alive(self) -> bool:
        """Whether there is a tracker that has not failed."""
        return bool(self._sinks)

    def log(self, metrics: Mapping[str, float], round: int) -> None:
        """Log the metrics of communication round ``round``."""
        self._each(lambda sink: sink.log(metrics, round))

    def image(self, key: str, picture: Path | Figure, round: int) -> None:
        """Log a picture: a PNG file or a Matplotlib figure."""
        if self._sinks:
            self._each(lambda sink: sink.image(key, as_image(picture), round))

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table, ``rows`` of ``len(columns)`` cells each, to the trackers that have tables."""
        self._each(lambda sink: sink.table(key, columns, rows))

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set the run's final values in the trackers that have them."""
        self._each(lambda sink: sink.summary(values))

    def file(self, path: Path, kind: str) -> None:
        """Keep a file as an artifact of a kind, in the trackers that have them."""
        self._each(lambda sink: sink.file(path, kind))

    def close(self, status: str) -> None:
        """Finish all trackers; nothing is logged afterwards.

        Args:
            status: ``"success"``, or anything else for a run that did not end well.
        """
        self._each(lambda sink: sink.close(status))
        self._sinks = []

    def _each(self, action: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                action(sink)
            except Exception as error:
                self._sinks.remove(sink)
                _LOG.warning("%s failed, the run goes on without it: %s", sink.name, one_line(error))
