"""A table for the terminal that shows its leading columns only where it is narrow."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def print_table(
    head: Sequence[str], body: Sequence[Sequence[str]], width: int, title: str | None = None
) -> Table:
    """Return a table of at most some width, with names at the left and numbers at the right."""
    shown = Table(title=title, title_justify="left")
    used = 1
    for at, heading in enumerate(head):
        widest = max(map(len, [*heading.split(), *(line[at] for line in body)]))
        used += 3 + widest
        if at and used > width:
            break
        shown.add_column(heading, justify="left" if at == 0 else "right", width=widest)
    for line in body:
        shown.add_row(*line[: len(shown.columns)])
    return shown
