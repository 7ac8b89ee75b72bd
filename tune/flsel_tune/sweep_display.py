"""Show a sweep: one compact table on a terminal, or one line for each trial elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from time import monotonic
from typing import Any, TextIO

from rich.table import Table

from flsel.execution.live_table import LiveTable
from flsel_tune.metric import SweepObjective

_ENDED = ("complete", "pruned", "diverged", "failed")


class Console(LiveTable):
    """Show how far a sweep is.

    Args:
        trials: Trials of the whole sweep.
        metric: The metric whose values are shown, the first of several.
        name: Name of its values in the reports.
        quiet: Show nothing.
        stream: Where to write; None is the standard output.
    """

    def __init__(
        self, trials: int, metric: SweepObjective, name: str, *, quiet: bool, stream: TextIO | None = None
    ) -> None:
        super().__init__(quiet=quiet, stream=stream)
        self._trials = trials
        self._metric = metric
        self._name = name
        self._running: dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        self._counts: Counter[str] = Counter()
        self._earlier = 0
        self._best: tuple[float, int] | None = None
        self._began = monotonic()

    def resumed(self, counts: Mapping[str, int], best: tuple[float, int] | None) -> None:
        """Take over what an earlier driver has done.

        Args:
            counts: Trials by how they ended.
            best: Value and number of the best complete trial, if there is one.
        """
        self._counts = Counter(counts)
        self._earlier = sum(counts.values())
        self._best = best

    def reported(self, number: int, settings: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Show a trial's report."""
        self._running[number] = (settings, result)
        self.show(self._table)

    def ended(self, number: int, found: Mapping[str, Any]) -> None:
        """Show how a trial ended."""
        settings, result = self._running.pop(number, (None, {}))
        self._counts[found["status"]] += 1
        value = result.get(self._name)
        if found["status"] == "complete" and value is not None and self._is_better(value, number):
            self._best = (value, number)
        if not self.show(self._table):
            self._line(number, found, value, settings)

    def _line(
        self, number: int, found: Mapping[str, Any], value: float | None, settings: Mapping[str, Any] | None
    ) -> None:
        shown = "" if value is None else f": {self._metric.text} {value:.4f}"
        why = f" ({found['error']})" if found["error"] else ""
        tried = "" if settings is None else f"  {_words(settings)}"
        what = f"trial {number} {found['status']} at round {found['round']}{shown}{why}{tried}"
        self.line(f"{what}  |  {self._summary()}")

    def _summary(self) -> str:
        done = sum(self._counts.values())
        parts = [f"{done}/{self._trials} done"]
        parts += [f"{self._counts[name]} {name}" for name in _ENDED if self._counts[name]]
        if self._best:
            parts.insert(0, f"best {self._metric.text} {self._best[0]:.4f}, trial {self._best[1]}")
        now = done - self._earlier
        if now and done < self._trials:
            pace = (monotonic() - self._began) / now
            parts.append(f"{timedelta(seconds=round(pace * (self._trials - done)))} left")
        return ", ".join(parts)

    def _table(self) -> Table:
        # As wide as the terminal: a title is broken at the table's width.
        title = f"{self._summary()}, {len(self._running)} running"
        table = Table(title=title, title_justify="left", expand=True)
        for heading in ("trial", "round", self._metric.text):
            table.add_column(heading, justify="right")
        table.add_column("settings", ratio=1)
        for number, (settings, result) in sorted(self._running.items()):
            table.add_row(str(number), str(result["round"]), f"{result[self._name]:.4f}", _words(settings))
        return table

    def _is_better(self, value: float, number: int) -> bool:
        if self._best is None:
            return True
        best, its = self._best
        if value == best:
            return number < its  # as in the table at the end
        return value > best if self._metric.mode == "max" else value < best


def _words(settings: Mapping[str, Any]) -> str:
    shown = (
        (key, f"{value:.4g}" if isinstance(value, float) else str(value)) for key, value in settings.items()
    )
    return " ".join(f"{key}={value}" for key, value in shown) or "the config's own settings"
