"""Show many runs: one table that is redrawn on a terminal, or one line for each run elsewhere.

In a notebook it is one line, written anew.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TextIO, TypeVar

from rich.live import Live
from rich.table import Table

from flsel.runner.terminal import CellLine, in_notebook, open_console

_PER_SECOND = 4
TableType = TypeVar("TableType", bound="LiveTable")


class LiveTable:
    """A place for a table or for lines; a context manager.

    Args:
        quiet: Show nothing.
        stream: Where to write; None is the standard output.
    """

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._out = open_console(stream)
        shown = self._out.is_terminal and not quiet
        self._cell = CellLine() if in_notebook() and not quiet and stream is None else None
        self._live = Live(console=self._out, refresh_per_second=_PER_SECOND) if shown else None

    def __enter__(self: TableType) -> TableType:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, table: Callable[[], Table]) -> bool:
        """Draw a table in the place of the last one; False where there is no terminal to draw it on."""
        if self._live:
            self._live.update(table())
        return self._live is not None

    def line(self, text: str) -> None:
        """Write one line, however long, unless nothing is to be shown."""
        if self._cell:
            self._cell.show(text, last=True)
        elif not self._quiet:
            self._out.print(text, markup=False, highlight=False, soft_wrap=True)
