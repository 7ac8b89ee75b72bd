"""Show a comparison: progress and results in the terminal, and its own run in W&B or MLflow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TextIO

from rich.table import Table

from flsel.comparison.comparison import Comparison
from flsel.comparison.grid import FILE
from flsel.comparison.judging import formatting
from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.judging.headline import headline
from flsel.comparison.judging.notes import notes
from flsel.comparison.judging.verdicts import folded
from flsel.comparison.reporting.tables import MOST_SCENARIOS, lost_rows, main_table
from flsel.comparison.run_table import Run
from flsel.config import RunConfig
from flsel.execution.live_table import LiveTable
from flsel.files.yaml import read_yaml
from flsel.metrics import SCORE, Score
from flsel.runner.terminal import fitting_table, open_console
from flsel.runner.trackers.loggers import make_loggers
from flsel.runner.trackers.tracker import Tracker

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
            said = f"{run.status}: {run.reason}"
            if run.status == "complete":
                said = f"{run.score.words} {_shown(run.summary['final'][run.score.column], run.score)}"
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


def _shown(value: float, score: Score) -> str:
    return formatting.number(value, "%" if score.is_share else "")


def say(analysis: Analysis, paths: Sequence[Path], stream: TextIO | None = None) -> None:
    """Print the main tables, the verdicts, what limits them, and where everything is."""
    out = open_console(stream)
    if len(analysis.scenarios) <= MOST_SCENARIOS:
        for scenario in analysis.scenarios:
            headings, rows = main_table(analysis, scenario)
            below = [[cell.replace(" [", "\n[") for cell in row] for row in rows]
            title = formatting.where(scenario).strip() or None
            out.print(fitting_table(headings, below, out.width, title, lines=True), markup=False)
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


def track_comparison(made: Comparison, paths: list[Path]) -> None:
    """Log a comparison as one run of job type ``comparison``, if its runs go to W&B or MLflow."""
    folder = made.folder
    if folder is None or not (folder / FILE).is_file():
        return
    settings = read_yaml(folder / FILE)["config"]
    config = RunConfig.from_dict(settings)
    keepers = [name for name in config.track.trackers if name in ("wandb", "mlflow")]
    if not keepers:
        return
    loggers = make_loggers(
        replace(config.track, tracker=",".join(keepers), group=config.track.group or folder.name),
        run_dir=folder,
        name=folder.name,
        resolved_config=settings,
        tags=(config.data.name,),
        job_type="comparison",
    )
    tracker = Tracker(loggers)
    for scenario in made.analysis.scenarios:
        headings, rows = main_table(made.analysis, scenario)
        tracker.table(f"comparison/{scenario}", headings, rows)
    tracker.table("comparison/verdicts", ("kind", "verdict"), [(v.kind, v.text) for v in made.verdicts])
    for path in paths:
        if path.suffix == ".png":
            tracker.image(f"comparison/{path.stem}", path, config.rounds)
    tracker.file(paths[0], "report")
    tracker.close("success")
