"""A judged comparison: frames for notebooks, figures, and the files of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flsel.comparison.grid import Tuning
from flsel.comparison.judging.analysis import analyse
from flsel.comparison.judging.limits import notes
from flsel.comparison.judging.measures import Target, chosen_target
from flsel.comparison.judging.results import Analysis, Options
from flsel.comparison.judging.verdicts import Verdict, verdicts
from flsel.comparison.reading import Run, complete
from flsel.comparison.reporting import figures, tables
from flsel.comparison.reporting.markdown import report
from flsel.comparison.reporting.webpage import page
from flsel.errors import UserError
from flsel.files import home, naming, write_atomic

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_USUAL_BASELINE = "Uniform"


def judge(
    runs: Sequence[Run],
    baseline: str | None,
    target: Target | None,
    *,
    last: int,
    unpaired: bool,
    tuned: Mapping[str, Tuning],
) -> Analysis:
    """Judge runs.

    Args:
        runs: All runs of a comparison.
        baseline: The variant that others are compared with; None takes Uniform, or the first with a result.
        target: Test accuracy to reach; None chooses one from the baseline's runs.
        last: Evaluations in the mean at the end; no more than half of those that the shortest run has.
        unpaired: Whether runs that are no pairs are compared unpaired.
        tuned: By variant the sweep that tuned it.

    Raises:
        UserError: If no run, or none of the baseline, has a result.
    """
    done = complete(runs)
    names = list(dict.fromkeys(run.variant for run in done))
    if not names:
        lost = next((run for run in runs if run.status != "complete"), None)
        why = "" if lost is None else f": {lost.folder} {lost.status} ({lost.reason.rstrip('.')})"
        raise UserError(f"no run has a result to compare{why}.")
    if baseline is None:
        baseline = _USUAL_BASELINE if _USUAL_BASELINE in names else names[0]
    if baseline not in names:
        raise UserError(f"baseline {baseline} has no finished run; there are runs of {', '.join(names)}.")
    asked, evaluations = last, min(len(run.columns["round"]) for run in done)
    last = min(asked, max(1, evaluations // 2))
    if target is None:
        target = chosen_target([run for run in done if run.variant == baseline], last)
    return analyse(runs, Options(baseline, last, unpaired, asked), target, tuned)


@dataclass(frozen=True)
class Comparison:
    """Variants judged over seeds and settings.

    Attributes:
        analysis: All numbers.
        folder: Where the report is written, or None.
        commands: Command lines that led here.
    """

    analysis: Analysis = field(repr=False)
    folder: Path | None = None
    commands: tuple[str, ...] = field(default=(), repr=False)

    @property
    def results(self) -> pandas.DataFrame:
        """One row a run: who it is, what became of it, every measure."""
        return _frame(tables.result_rows(self.analysis))

    @property
    def summary(self) -> pandas.DataFrame:
        """One row for every variant, setting and measure: mean, interval, interquartile mean."""
        return _frame(tables.summary_rows(self.analysis))

    @property
    def differences(self) -> pandas.DataFrame:
        """One row for every comparison with the baseline: estimate, interval, tests, what is missing."""
        return _frame(tables.difference_rows(self.analysis))

    @property
    def verdicts(self) -> list[Verdict]:
        """One sentence a claim, made by rule."""
        return verdicts(self.analysis)

    @property
    def notes(self) -> list[str]:
        """What limits the claims."""
        return notes(self.analysis)

    def to_latex(self) -> str:
        """Return the main tables with booktabs' rules."""
        return tables.to_latex(self.analysis)

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        return report(self.analysis, self._title, self.commands)

    def to_html(self) -> str:
        """Return the report as one page that needs no network.

        Raises:
            UserError: If vl-convert, which holds the charts' library, is missing.
        """
        return page(self.analysis, self._title, self.folder, self.commands)

    @property
    def _title(self) -> str:
        return "Comparison" if self.folder is None else self.folder.name

    def plot_curves(self, *, cost: str = "rounds", measure: str = "accuracy") -> Figure:
        """Draw learning curves; see :func:`flsel.comparison.reporting.figures.plot_curves`."""
        return figures.plot_curves(self.analysis, cost=cost, measure=measure)

    def plot_cost(self, *, cost: str = "bytes") -> Figure:
        """Draw accuracy against cost."""
        return figures.plot_cost(self.analysis, cost=cost)

    def plot_pairs(self) -> Figure:
        """Draw every seed's difference to the baseline."""
        return figures.plot_pairs(self.analysis)

    def plot_target(self) -> Figure:
        """Draw which share of runs has reached the target by a round."""
        return figures.plot_target(self.analysis)

    def plot_ranks(self) -> Figure:
        """Draw mean ranks over settings."""
        return figures.plot_ranks(self.analysis)

    def plot_profile(self) -> Figure:
        """Draw performance profiles over settings."""
        return figures.plot_profile(self.analysis)

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
            "report.html": self.to_html(),
            "report.md": self.to_markdown(),
            "results.csv": tables.to_csv(tables.result_rows(self.analysis)),
            "summary.csv": tables.to_csv(tables.summary_rows(self.analysis)),
            "differences.csv": tables.to_csv(tables.difference_rows(self.analysis)),
            "table.tex": self.to_latex(),
        }
        for name, text in files.items():
            write_atomic(self.folder / name, text)
        drawn = figures.write_figures(self.analysis, self.folder / "figures")
        return [*(self.folder / name for name in files), *drawn]


def _frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError as error:
        raise UserError('frames need pandas: pip install "flsel[pandas]".') from error
    return pandas.DataFrame(list(rows))
