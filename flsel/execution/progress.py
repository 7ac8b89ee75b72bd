"""Show the progress of a run: a bar on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TextIO

from rich import progress
from rich.console import Console
from rich.table import Table

from flsel.metrics import SCORE, Score, columns
from flsel.runner.terminal import CellLine, in_notebook, open_console, print_lines

_SHOWN = {quantity: columns(quantity) for quantity in ("accuracy", "loss")}
_SECONDS_BETWEEN_LINES = 5.0
_PACE_ROUNDS = 20


class Progress:
    """Show how far a run is; a context manager.

    On a terminal and in a notebook it is one bar with the round, accuracy, loss, seconds per round and time
    left; elsewhere a line of the same at most every 5 seconds, the first and the last update always.

    Args:
        rounds: Communication rounds of the whole run.
        quiet: Show nothing.
        stream: Where to write; None is the standard output.
        start: Communication rounds already completed, for a resumed run.
        score: What the run is judged by.
    """

    def __init__(
        self,
        rounds: int,
        *,
        quiet: bool,
        stream: TextIO | None = None,
        start: int = 0,
        score: Score = SCORE,
    ) -> None:
        self._shown = _SHOWN | ({} if score.name in _SHOWN else {score.name: (score.column,)})
        self._rounds = rounds
        self._quiet = quiet
        self._console = open_console(stream)
        self._bar = _bar(self._console) if self._console.is_terminal and not quiet else None
        self._cell = CellLine() if in_notebook() and not quiet and stream is None else None
        self._pace = deque([(monotonic(), start)], maxlen=_PACE_ROUNDS + 1)
        self._values: dict[str, float] = {}
        self._printed: tuple[float, int] | None = None
        if self._bar:
            self._task = self._bar.add_task(self._line(), total=rounds, completed=start)

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        elif self._cell:
            self._cell.show(self._line(), self._pace[-1][1] / self._rounds, last=True)
        elif self._printed and self._printed[1] != self._pace[-1][1]:
            self._print()

    def update(self, round: int, metrics: Mapping[str, float] | None = None) -> None:
        """Show that ``round`` communication rounds are completed.

        Args:
            round: Rounds completed, in 1..rounds.
            metrics: What was measured in this round; what is not in it keeps its last value.
        """
        if self._quiet:
            return
        self._pace.append((monotonic(), round))
        self._values |= self._found(metrics or {})
        if self._bar:
            self._bar.update(self._task, completed=round, description=self._line())
        elif self._cell:
            self._cell.show(self._line(), round / self._rounds)
        elif self._printed is None or self._pace[-1][0] - self._printed[0] >= _SECONDS_BETWEEN_LINES:
            self._print()

    def _line(self) -> str:
        (began, first), (now, last) = self._pace[0], self._pace[-1]
        parts = [f"round {last}/{self._rounds}"]
        parts += [f"{name} {value:.4f}" for name, value in self._values.items()]
        if last > first:
            pace = (now - began) / (last - first)
            left = timedelta(seconds=round(pace * (self._rounds - last)))
            parts += [f"{pace:.3g} s/round", f"{left} left"]
        return "  ".join(parts)

    def _found(self, metrics: Mapping[str, float]) -> dict[str, float]:
        shown = {name: [key for key in keys if key in metrics] for name, keys in self._shown.items()}
        return {name: metrics[keys[0]] for name, keys in shown.items() if keys}

    def _print(self) -> None:
        self._printed = self._pace[-1]
        print_lines(self._line(), console=self._console)


def final_table(
    rows: Sequence[Sequence[object]],
    paths: Sequence[Path | str] = (),
    *,
    columns: Sequence[str] = ("metric", "value"),
    stream: TextIO | None = None,
) -> None:
    """Print a short table and the files written.

    Args:
        rows: Cells, as many a row as ``columns``; floats are shown with four digits, None as ``-``.
        paths: What the run wrote.
        columns: Headings.
        stream: Where to write; None is the standard output.
    """
    console = open_console(stream)
    cells = [[_cell(cell) for cell in row] for row in rows]
    if console.is_terminal:
        console.print(_rich_table(columns, cells))
    else:
        print_lines(*_plain_table(columns, cells), console=console)
    print_lines(*(f"wrote {path}" for path in paths), console=console)


def _bar(console: Console) -> progress.Progress:
    # A few frames a second are enough, and each takes its time from the run.
    return progress.Progress(
        progress.BarColumn(bar_width=None),
        progress.TextColumn("{task.description}", markup=False),
        console=console,
        expand=True,
        refresh_per_second=4,
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table()
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    layout = "  ".join(f"{{:{'>' if position else '<'}{width}}}" for position, width in enumerate(widths))
    return [layout.format(*row) for row in (columns, *rows)]
