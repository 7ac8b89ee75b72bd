"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from flsel.comparison.grid import ALL
from flsel.comparison.judging.headline import headline
from flsel.comparison.judging.notes import notes
from flsel.comparison.judging.summaries import Analysis
from flsel.comparison.judging.verdicts import Verdict, folded
from flsel.comparison.reporting import tables
from flsel.files.escaping import markdown_code, markdown_text, one_line


def report(analysis: Analysis, title: str, commands: Sequence[str]) -> str:
    """Write verdicts, tables, what limits them, lost runs and commands."""
    parts = [f"# {markdown_text(title)}", "", f"**{markdown_text(headline(analysis))}**", ""]
    shown, rest = folded(analysis)
    parts += _listed(shown)
    if rest:
        title = f"{len(rest)} more comparisons, none significant"
        parts += ["", f"<details><summary>{title}</summary>", "", *_listed(rest), "", "</details>"]
    for scenario in analysis.scenarios:
        parts += ["", f"## {'Results' if scenario == ALL else markdown_text(scenario)}", ""]
        parts.append(tables.to_markdown(*tables.main_table(analysis, scenario)))
    level = f"{100 * analysis.options.level:g} %"
    parts += ["", f"Intervals are of {level}; flsel's docs/comparing.md says how to read each column."]
    parts += [
        "",
        "## What limits these claims",
        "",
        *(f"- {markdown_text(note)}" for note in notes(analysis)),
    ]
    if lost := tables.lost_rows(analysis):
        rows = (f"- {markdown_code(folder)}: {markdown_text(why)}" for folder, why in lost)
        parts += ["", "## Runs that count nowhere", "", *rows]
    if commands:
        parts += ["", "## Commands", "", "````", *map(one_line, commands), "````"]
    return "\n".join(parts) + "\n"


def _listed(found: Sequence[Verdict]) -> list[str]:
    return [f"- **{markdown_text(v.label)}.** {markdown_text(v.text)}" for v in found]
