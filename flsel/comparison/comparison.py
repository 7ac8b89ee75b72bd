"""A judged comparison: frames for notebooks, figures, and the files of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flsel.comparison.grid import ALL, Tuning
from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.judging.claims import Sample
from flsel.comparison.judging.headline import headline
from flsel.comparison.judging.measures import Target, chosen_target
from flsel.comparison.judging.notes import notes
from flsel.comparison.judging.settings import Options, usual_baseline
from flsel.comparison.judging.verdicts import Verdict, verdicts
from flsel.comparison.reporting import figures, tables
from flsel.comparison.reporting.figures import Drawing, draw_chart
from flsel.comparison.reporting.latex import to_latex
from flsel.comparison.reporting.tables import MOST_SCENARIOS
from flsel.comparison.reporting.webpage import page, report
from flsel.comparison.run_table import Run, common_score, complete, mark_diverged
from flsel.errors import UserError
from flsel.files import home, naming, write_atomic
from flsel.report.notebook import fragment, table

if TYPE_CHECKING:
    import pandas


def judge(runs: Sequence[Run], wanted: Options, tuned: Mapping[str, Tuning]) -> Analysis:
    """Judge runs.

    Args:
        runs: All runs of a comparison.
        wanted: How; see :func:`settled`. A target is chosen from the baseline's runs where there is none.
        tuned: By variant the sweep that tuned it.

    Raises:
        UserError: If no run, or none of the baseline, has a result.
    """
    sample = settled(runs, wanted)
    options, done = sample.options, complete(sample.runs)
    score = options.score
    if options.target is None:
        target = chosen_target([run for run in done if run.variant == options.baseline], options.last, score)
    elif score.is_share and not 0 < options.target <= 1:
        raise UserError(f"target must be in (0, 1] for an accuracy, got {options.target:g}.")
    else:
        target = Target(options.target, options.target_after, score)
    made = Analysis(sample.runs, options, target, tuned)
    _ = made.claims  # what they lack is said before anything is written
    return made


def settled(runs: Sequence[Run], wanted: Options) -> Sample:
    """Return runs and how they are judged, with what they say about it.

    An empty baseline takes Uniform, or the first variant. ``last`` is lowered to half of the evaluations that
    the shortest run has. A run whose score is not finite in one of the last evaluations has diverged.

    Raises:
        UserError: If no run has a result, or none of the baseline ended.
    """
    done = complete(runs)
    last = min(wanted.last, max(1, min((len(run.columns["round"]) for run in done), default=2) // 2))
    runs = tuple(mark_diverged(run, last) for run in runs)
    if not complete(runs):
        lost = next((run for run in runs if run.status != "complete"), None)
        why = "" if lost is None else f": {lost.folder} {lost.status} ({lost.reason.rstrip('.')})"
        raise UserError(f"no run has a result to compare{why}.")
    names = list(dict.fromkeys(run.variant for run in runs if run.status in ("complete", "diverged")))
    baseline = wanted.baseline or usual_baseline(names)
    if baseline not in names:
        raise UserError(f"baseline {baseline} has no finished run; there are runs of {', '.join(names)}.")
    score = common_score(done)
    return Sample(runs, replace(wanted, baseline=baseline, last=last, asked=wanted.last, score=score))


@dataclass(frozen=True)
class Comparison:
    """Variants judged over seeds and scenarios.

    Attributes:
        analysis: All numbers.
        folder: Where the report is written, or None.
        commands: Command lines that led here.
        models: Model objects that its runs train, for a resume: no file holds them.
    """

    analysis: Analysis = field(repr=False)
    folder: Path | None = None
    commands: tuple[str, ...] = field(default=(), repr=False)
    models: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def results(self) -> pandas.DataFrame:
        """One row for each run: its variant, scenario and seed, its status, and every measure."""
        return _frame(tables.result_rows(self.analysis))

    @property
    def summary(self) -> pandas.DataFrame:
        """One row for every variant, scenario and measure: mean, interval, interquartile mean."""
        return _frame(tables.summary_rows(self.analysis))

    @property
    def differences(self) -> pandas.DataFrame:
        """One row for every comparison with the baseline: estimate, interval, tests, what is missing."""
        return _frame(tables.difference_rows(self.analysis))

    @property
    def decisions(self) -> pandas.DataFrame:
        """One row for every look at every claim, where seeds are added until claims are decided."""
        return _frame(tables.decision_rows(self.analysis))

    @property
    def verdicts(self) -> list[Verdict]:
        """One sentence for each claim, made by rule."""
        return verdicts(self.analysis)

    @property
    def headline(self) -> str:
        """The recommended variant, its gain, and its cost."""
        return headline(self.analysis)

    @property
    def notes(self) -> list[str]:
        """What limits the claims."""
        return notes(self.analysis)

    def to_latex(self, columns: Sequence[str] | None = None, *, transposed: bool = False) -> str:
        """Return the main tables for a paper; see :func:`flsel.comparison.reporting.latex.to_latex`."""
        return to_latex(self.analysis, columns, transposed=transposed)

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        return report(self.analysis, self._title, self.commands)

    def to_html(self) -> str:
        """Return the report as one page that needs no network.

        Raises:
            UserError: If vl-convert, which holds the charts' library, is missing.
        """
        return page(self.analysis, self._title, self.folder, self.commands)

    def _repr_html_(self) -> str:
        shown = "".join(
            (f"<p>{escape(scenario)}</p>" if scenario != ALL else "")
            + table(*tables.main_table(self.analysis, scenario))
            for scenario in self.analysis.scenarios[:MOST_SCENARIOS]
        )
        picture = ""
        with suppress(UserError):  # without vl-convert, or with nothing to draw
            picture = self.plot_curves().render("svg").decode()
        footer = "" if self.folder is None else str(self.folder)
        return fragment(self.headline, shown, picture, footer)

    @property
    def _title(self) -> str:
        return "Comparison" if self.folder is None else self.folder.name

    def plot_curves(self, *, cost: str | None = None, measure: str | None = None) -> Drawing:
        """Draw learning curves; see :func:`flsel.comparison.reporting.figures.draw_chart`."""
        return draw_chart(self.analysis, "curves", cost=cost, measure=measure)

    def plot_cost(self, *, cost: str | None = None) -> Drawing:
        """Draw the score against cost."""
        return draw_chart(self.analysis, "cost", cost=cost)

    def plot_pairs(self) -> Drawing:
        """Draw every seed's difference to the baseline."""
        return draw_chart(self.analysis, "pairs")

    def plot_target(self) -> Drawing:
        """Draw which share of runs has reached the target by a round."""
        return draw_chart(self.analysis, "survival")

    def plot_ranks(self) -> Drawing:
        """Draw mean ranks over scenarios."""
        return draw_chart(self.analysis, "ranks")

    def plot_profile(self) -> Drawing:
        """Draw performance profiles: the share of runs, over all scenarios, that end better than a score."""
        return draw_chart(self.analysis, "profile")

    def write(self, folder: str | PathLike[str] | None = None) -> list[Path]:
        """Write the report's files.

        Args:
            folder: Where, made if missing; None is the folder of the comparison, which one of runs does not
                have.

        Returns:
            Their paths, the page first.

        Raises:
            UserError: If there is no folder, or a file cannot be written.
        """
        if folder is not None:
            target = home(folder)
            with naming(target):
                target.mkdir(parents=True, exist_ok=True)
            return replace(self, folder=target).write()
        if self.folder is None:
            raise UserError("a comparison of runs has no folder of its own: name one, as in write('report').")
        files = {
            "report.md": self.to_markdown(),
            "results.csv": tables.to_csv(tables.result_rows(self.analysis)),
            "summary.csv": tables.to_csv(tables.summary_rows(self.analysis)),
            "differences.csv": tables.to_csv(tables.difference_rows(self.analysis)),
            "table.tex": self.to_latex(),
        }
        if self.analysis.claims:
            files["decisions.csv"] = tables.to_csv(tables.decision_rows(self.analysis))
        for name, text in files.items():
            write_atomic(self.folder / name, text)
        # What may want more memory than there is comes last.
        write_atomic(self.folder / "report.html", self.to_html())
        files = {"report.html": "", **files}
        drawn = figures.write_charts(self.analysis, self.folder / "figures")
        return [*(self.folder / name for name in files), *drawn]


def _frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(list(rows))
