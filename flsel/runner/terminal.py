"""Output that cannot hurt a run: the pipe may be closed, the disk full, the encoding too small."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class Outlet:
    """A text stream that falls silent where writing fails, and replaces what it cannot encode.

    A closed pipe (``flsel train | head -1``), a terminal that hung up and a full disk silence the console,
    never the run.

    Args:
        stream: Where to write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._silent = False

    @property
    def encoding(self) -> str:
        """Encoding of the stream."""
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Tell whether a person is at the other end."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the handle of the stream."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write what can be written; return the length of the text."""
        if not self._silent:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
            except (OSError, ValueError):  # a ValueError if it is closed
                self._fall_silent()
        return len(text)

    def flush(self) -> None:
        """Hand over what was written."""
        if not self._silent:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._fall_silent()

    def _fall_silent(self) -> None:
        self._silent = True
        if self._stream in (sys.__stdout__, sys.__stderr__):
            # Python flushes them at its end and would complain about what is still in their buffers.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def open_console(stream: TextIO | None = None) -> Console:
    """Return rich's console on an outlet; rich's own would end the process on a closed pipe.

    Args:
        stream: Where to write; None is the standard output.
    """
    from rich.console import Console, RenderableType
    from rich.segment import Segment

    from flsel.files.escaping import terminal_text

    # While a bar is shown, sys.stdout is rich's and would write to the console itself.
    real = getattr(sys.stdout, "rich_proxied_file", sys.stdout) if stream is None else stream
    # In a notebook rich would make each line a block of its own, and the stream of a kernel passes for a
    # terminal: each state of a bar would stay in the saved file.
    cell = stream is None and in_notebook()
    console = Console(
        file=cast(TextIO, Outlet(real)), force_jupyter=False, force_terminal=False if cell else None
    )
    render = console.render

    def shown(renderable: RenderableType, options: Any = None) -> Any:
        """Let texts do nothing but show."""
        for part in render(renderable, options):
            yield part if part.control else Segment(terminal_text(part.text), part.style)

    console.render = shown  # type: ignore[method-assign]
    return console


def print_lines(*lines: str, console: Console | None = None) -> None:
    """Print lines as they are: without markup or colours, and not broken where the terminal is narrow."""
    for line in lines:
        (console or open_console()).print(line, markup=False, highlight=False, soft_wrap=True)


def in_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class CellLine:
    """One line below a notebook's cell, written anew; two calls in a cell share it."""

    _last: tuple[int, Any] | None = None
    _SECONDS = 0.25

    def __init__(self) -> None:
        # In a kernel both are imported.
        ipython: Any = sys.modules["IPython"]
        cell = int(ipython.get_ipython().execution_count)
        if CellLine._last is None or CellLine._last[0] != cell:
            CellLine._last = cell, ipython.display.display({"text/plain": ""}, raw=True, display_id=True)
        self._handle = CellLine._last[1]
        self._shown = 0.0

    def show(self, text: str, share: float | None = None, *, last: bool = False) -> None:
        """Show a text.

        Args:
            text: The text.
            share: What is done, in [0, 1], for a bar.
            last: Show it however short the time since the one before.
        """
        if not last and monotonic() - self._shown < self._SECONDS:
            return
        self._shown = monotonic()
        bar = "" if share is None else f'<progress value="{share:.3f}" max="1"></progress> '
        shown = {"text/plain": text, "text/html": f"{bar}<code>{escape(text)}</code>"}
        with suppress(Exception):  # a notebook that is gone ends no run
            self._handle.update(shown, raw=True)


def fitting_table(
    head: Sequence[str],
    body: Sequence[Sequence[str]],
    width: int,
    title: str | None = None,
    *,
    lines: bool = False,
) -> Table:
    """Return a table of at most some width, with names at the left and numbers at the right.

    Where it is narrow it has the leading columns only.

    Args:
        head: Headings.
        body: Rows; a cell may have several lines.
        width: Letters in a line.
        title: What stands above it.
        lines: Whether lines are drawn between rows.
    """
    from rich.table import Table

    shown = Table(title=title, title_justify="left", show_lines=lines)
    used = 1
    for at, heading in enumerate(head):
        words = [*heading.split(), *(part for row in body for part in row[at].split("\n"))]
        widest = max(map(len, words))
        used += 3 + widest
        if at and used > width:
            break
        # Fixed: rich would make wide columns wider than needed and cut off the last one.
        shown.add_column(heading, justify="left" if at == 0 else "right", width=widest)
    for row in body:
        shown.add_row(*row[: len(shown.columns)])
    return shown
