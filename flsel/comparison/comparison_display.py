"""Show a comparison in the terminal: progress with the table so far, then the table and the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TextIO

from rich.table import Table

from flsel.comparison.judging import formatting
from flsel.comparison.judging.headline import headline
from flsel.comparison.judging.notes import notes
from flsel.comparison.judging.summaries import Analysis
from flsel.comparison.judging.verdicts import folded
from flsel.comparison.reporting.tables import MOST_SCENARIOS, lost_rows, main_table
from flsel.comparison.run_table import Run
from flsel.execution.live_table import LiveTable
from flsel.metrics import SCORE, Score
from flsel.runner.terminal import open_console

_SECONDS_BETWEEN_LINES = 5.0
_MARKS = {"resolved": "*", "open": "-", "exploratory": "~"}


class ComparisonProgress(LiveTable):
    """Show how far a comparison is: a table of variants with what they have so far, or a line for every run.

    Args:
        runs: All cells as they lie there.
        rounds: Communication rounds of a run.
        quiet: Show nothing.
        stream: Where to write; None is the standard output.
    """

    def __init__(
        self, runs: Sequence[Run], rounds: int, *, quiet: bool, stream: TextIO | None = None
    ) -> None:
        super().__init__(quiet=quiet, stream=stream)
        self._runs = {(run.variant, run.scenario, run.seed): run for run in runs}
        self._began = monotonic()
        self._done = 0
        self._left = rounds * sum(run.status in ("missing", "unfinished", "failed") for run in runs)

    def advanced(self, rounds: int) -> None:
        """Count rounds of any run."""
        self._done += rounds
        self.show(self._table)

    def ended(self, run: Run) -> None:
        """Take note of a run that ended."""
        self._runs[run.variant, run.scenario, run.seed] = run
        if not self.show(self._table):
            said = _score(run) if run.status == "complete" else f"{run.status}: {run.reason}"
            who = f"{run.variant}{formatting.where(run.scenario)}, seed {run.seed}"
            self.line(f"{who}: {said}  |  {self._summary()}")

    def _summary(self) -> str:
        counts = Counter(run.status for run in self._runs.values())
        parts = [f"{counts['complete']}/{len(self._runs)} runs done"]
        parts += [f"{counts[name]} {name}" for name in ("diverged", "failed") if counts[name]]
        left = self._left - self._done
        if self._done and left > 0:
            seconds = (monotonic() - self._began) / self._done * left
            parts.append(f"{timedelta(seconds=round(seconds))} left")
        return ", ".join(parts)

    def _table(self) -> Table:
        score = next((run.score for run in self._runs.values() if run.result is not None), SCORE)
        table = Table("variant", "done", f"{score.words} so far", title=self._summary(), title_justify="left")
        groups: dict[str, list[Run]] = {}
        for run in self._runs.values():
            groups.setdefault(f"{run.variant}{formatting.where(run.scenario)}", []).append(run)
        for name, runs in groups.items():
            done = [run.summary["final"][score.column] for run in runs if run.status == "complete"]
            mean = _shown(sum(done) / len(done), score) if done else "-"
            table.add_row(name, f"{len(done)}/{len(runs)}", mean)
        return table


def _score(run: Run) -> str:
    return f"{run.score.words} {_shown(run.summary['final'][run.score.column], run.score)}"


def _shown(value: float, score: Score) -> str:
    return formatting.number(value, "%" if score.is_share else "")


def say(analysis: Analysis, paths: Sequence[Path], stream: TextIO | None = None) -> None:
    """Print the main tables, the verdicts, what limits them, and where everything is."""
    out = open_console(stream)
    if len(analysis.scenarios) <= MOST_SCENARIOS:
        for scenario in analysis.scenarios:
            out.print(_main_table(analysis, scenario, out.width), markup=False)
    else:
        out.print(f"The report has the tables of the {len(analysis.scenarios)} scenarios.")
    out.print(headline(analysis), markup=False, highlight=False, style="bold")
    shown, rest = folded(analysis)
    for verdict in shown:
        mark = _MARKS[verdict.kind]
        out.print(f"{mark} {verdict.label}. {verdict.text}", markup=False, highlight=False)
    if rest:
        out.print(
            f"- {len(rest)} more comparisons are not significant; the report has them.", highlight=False
        )
    for note in notes(analysis):
        out.print(f"  {note}", markup=False, highlight=False, style="dim")
    for folder, why in lost_rows(analysis):
        out.print(f"! {folder}: {why}", markup=False, highlight=False)
    for path in paths:
        out.print(str(path), markup=False, highlight=False, soft_wrap=True)


def _main_table(analysis: Analysis, scenario: str, width: int) -> Table:
    """Return the main table, intervals below their values; the leading columns only where it is narrow."""
    headings, rows = main_table(analysis, scenario)
    lines = [[cell.replace(" [", "\n[") for cell in row] for row in rows]
    table = Table(title=formatting.where(scenario).strip() or None, title_justify="left", show_lines=True)
    used = 1
    for at, heading in enumerate(headings):
        widest = max(map(len, [*heading.split(), *(p for line in lines for p in line[at].split("\n"))]))
        used += 3 + widest
        if used > width:
            break
        # Fixed: rich would make wide columns wider than needed and cut off the last one.
        table.add_column(heading, justify="left" if at == 0 else "right", width=widest)
    for line in lines:
        table.add_row(*line[: len(table.columns)])
    return table
