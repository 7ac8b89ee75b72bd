"""The report as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flsel.comparison import tables
from flsel.comparison.grid import ALL
from flsel.comparison.verdicts import notes, verdicts

if TYPE_CHECKING:
    from flsel.comparison.comparison import Comparison


def report(made: Comparison) -> str:
    """Write verdicts, tables, what limits them, lost runs and commands."""
    analysis = made.analysis
    title = "Comparison" if made.folder is None else made.folder.name
    parts = [f"# {title}", ""]
    parts += [f"- {'**' + v.text + '**' if v.kind == 'resolved' else v.text}" for v in verdicts(analysis)]
    for setting in analysis.settings:
        parts += ["", f"## {'Results' if setting == ALL else setting}", ""]
        parts.append(tables.to_markdown(*tables.main_table(analysis, setting)))
    parts += ["", "Intervals are of 95 %; [docs/comparing.md] of flsel says how to read each column."]
    parts += ["", "## What limits these claims", "", *(f"- {note}" for note in notes(analysis))]
    lost = tables.lost_rows(analysis)
    if lost:
        parts += ["", "## Runs that count nowhere", "", *(f"- `{folder}`: {why}" for folder, why in lost)]
    if made.commands:
        parts += ["", "## Commands", "", "```", *made.commands, "```"]
    return "\n".join(parts) + "\n"
