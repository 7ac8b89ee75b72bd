"""Lay out a dashboard, its panels, the report's parts and the saved workspaces, and save it in W&B.

Panels name what runs log (:mod:`flsel.runner.trackers.values`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from flsel.comparison.dashboard.workspaces_internals import definition, setting
from flsel.metrics import SCORE, Score
from flsel.runner.cost_axes import COST_AXES
from flsel.runner.trackers.wandb_run import one_line

CHART = "flsel-participation"
COUNTS = "selection/counts"
STEPS = {axis.step: axis for axis in COST_AXES.values() if axis.overview}
# Means over fewer runs than there are would be wrong and look right; W&B's own limit is ten.
MOST_RUNS = 1000
_BY_VARIANT: dict[str, Any] = {
    "groupby": wr.Config("variant"), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev",
    "max_runs_to_show": MOST_RUNS,
}  # fmt: skip


def curve(metric: str, step: str, title: str) -> wr.LinePlot:
    """Draw a logged metric, a line for each variant, over one of :data:`STEPS`."""
    return wr.LinePlot(
        title=title,
        x=step,
        y=[metric],
        title_x=STEPS[step].title,
        smoothing_type="none",
        **_BY_VARIANT,
    )


def bar(metric: str, title: str) -> wr.BarPlot:
    """Compare a final value between variants."""
    return wr.BarPlot(title=title, metrics=[metric], orientation="h", **_BY_VARIANT)


def scatter(cost: str, quality: str, title: str) -> wr.ScatterPlot:
    """Draw a final value over a cost, a point for each run."""
    return wr.ScatterPlot(title=title, x=wr.SummaryMetric(cost), y=wr.SummaryMetric(quality))


def coordinates(settings: Iterable[str], results: Iterable[str]) -> wr.ParallelCoordinatesPlot:
    """Draw a line for each run through its settings, by dotted key, and its final values."""
    columns = [setting(key) for key in settings]
    columns += [wr.ParallelCoordinatesPlotColumn(metric=wr.SummaryMetric(name)) for name in results]
    return wr.ParallelCoordinatesPlot(title="Settings and results", columns=columns)


def participation(entity: str) -> list[Any]:
    """Draw how often each client took part; the heat map is the custom chart of a W&B user or team."""
    return [
        wr.CustomChart(
            query={"summaryTable": {"tableKey": COUNTS}},
            chart_name=f"{entity}/{CHART}" if entity else CHART,
            chart_fields={"client": "client", "count": "count"},
            chart_strings={"title": "Rounds that a client took part in"},
        ),
        wr.WeavePanelSummaryTable(table_name=COUNTS),
        curve("selection/distinct", "round", "Clients that took part at least once"),
        curve("selection/variance", "round", "Variance of the selection counts"),
    ]


def participation_chart() -> str:
    """Return the heat map of participation as W&B's custom charts want it: Vega-Lite with their fields.

    It tells the runs of several scenarios apart by their ids, as these have one name.
    """
    return (resources.files(__package__) / "participation.vl.json").read_text(encoding="utf-8")


def placed(panels: list[Any]) -> list[Any]:
    """Lay panels out in two columns of the report's grid, which is 24 wide."""
    for at, panel in enumerate(panels):
        panel.layout = wr.Layout(x=at % 2 * 12, y=at // 2 * 8, w=12, h=8)
    return panels


_SETTINGS = ("variant", "selector", "partition", "availability", "clients_per_round", "seed")


@dataclass(frozen=True)
class Dashboard:
    """What a dashboard shows.

    Attributes:
        project: W&B project of the runs.
        entity: W&B user or team; empty before publishing, where it is not known.
        group: W&B group, the name of a comparison or of a sweep, that alone is shown; None shows all.
        keys: Settings that the parallel coordinates show besides, such as ``selector.d``.
        score: What the runs are judged by.
    """

    project: str
    entity: str = ""
    group: str | None = None
    keys: tuple[str, ...] = ()
    score: Score = SCORE

    @property
    def _end(self) -> str:
        return f"last10/{self.score.column}"

    @property
    def _validation(self) -> str:
        return f"validation/{self.score.name}"

    @property
    def _columns(self) -> list[str]:
        settings = ("variant", "selector", "dataset", "partition", "availability", "seed")
        results = (self._end, f"final/{self.score.column}", "rounds_to_target", "to_target/reached")
        costs = (step for step in STEPS if step != "round")
        return [*(f"config:{name}.value" for name in settings), *(f"summary:{n}" for n in (*results, *costs))]

    @property
    def _trial_columns(self) -> list[str]:
        results = (self._validation, "tune/status", "step/bytes")
        return ["config:selector.value", "config:dataset.value", *(f"summary:{name}" for name in results)]

    def report(self) -> wr.Report:
        """Build the report; with an entity the library asks W&B for the project when it is saved."""
        blocks: list[Any] = [
            wr.P(
                "Curves and bars are means over the runs of a variant, bands one standard deviation. "
                "Whether a difference is more than chance says flsel compare, which pairs the seeds."
            )
        ]
        for title, text, panels in self._parts():
            grid = wr.PanelGrid(runsets=[self._runset("train", self._columns)], panels=placed(panels))
            blocks += [wr.H2(title), wr.P(text), grid]
        table = wr.PanelGrid(runsets=[self._runset("train", self._columns)], panels=[])
        blocks += [wr.H2("Runs"), wr.P("Every run; the filters above the table narrow it."), table]
        trials = wr.PanelGrid(
            runsets=[self._runset("trial", self._trial_columns)], panels=placed(self._search_panels())
        )
        text = "Trials of flsel tune, judged by the validation set: they do not log test results."
        blocks += [wr.H2("Sweeps"), wr.P(text), trials]
        return wr.Report(
            project=self.project,
            entity=self.entity,
            title=f"Client selection: {self.group or self.project}",
            description="Written by flsel dashboard.",
            blocks=blocks,
            width="fluid",
        )

    def workspaces(self) -> dict[str, ws.Workspace]:
        """Build the saved views by name: ``comparison`` of the runs, ``sweep`` of the trials."""
        parts = [ws.Section(title, panels=panels, is_open=True) for title, _, panels in self._parts()]
        search = [ws.Section("Search", panels=self._search_panels(), is_open=True)]
        return {
            "comparison": self._workspace("comparison", "train", self._end, self._columns, parts),
            "sweep": self._workspace("sweep", "trial", self._validation, self._trial_columns, search),
        }

    def files(self) -> dict[str, str]:
        """Return all definitions as texts of JSON by the name of their file, in W&B's own format."""
        made = {f"workspace-{name}.json": definition(view) for name, view in self.workspaces().items()}
        return {
            "report.json": definition(self.report()), **made, "participation.vl.json": participation_chart(),
        }  # fmt: skip

    def _parts(self) -> list[tuple[str, str, list[Any]]]:
        """Return title, text and panels of each part; each time new ones, as a report lays its own out."""
        words, column = self.score.words, self.score.column
        title, kind = f"{words[0].upper()}{words[1:]}", self.score.name.capitalize()
        curves = [curve(column, step, f"{title} over {axis.label}") for step, axis in STEPS.items()]
        loss = column == "test/loss"
        return [
            (
                kind if loss else f"{kind} and loss",
                "Over rounds, and over what a round costs.",
                curves if loss else [*curves, curve("test/loss", "round", "Test loss over rounds")],
            ),
            (
                "Rounds to the target",
                "A run that never arrives counts with all its rounds, so that a bar is a lower bound "
                "where not all arrived; the table says which did.",
                [
                    bar("to_target/round", "Rounds to the target (at least)"),
                    bar("to_target/bytes_down", "Bytes to clients until the target (at least)"),
                ],
            ),
            (
                f"Cost against {self.score.name}",
                f"One point a run: mean {words} of the last ten evaluations.",
                [
                    scatter(step, self._end, f"{axis.label.capitalize()} against {self.score.name}")
                    for step, axis in STEPS.items()
                    if step != "round"
                ],
            ),
            (
                "Participation",
                "How often each client took part: the heat map has a row for each run.",
                participation(self.entity),
            ),
            (
                "Settings and results",
                "A line for each run, and in which settings runs differ.",
                [self._coordinates(self._end), wr.RunComparer(diff_only=True)],
            ),
        ]

    def _search_panels(self) -> list[Any]:
        return [
            curve(self._validation, "round", f"Validation {self.score.name} over rounds"),
            self._coordinates(self._validation),
            wr.ParameterImportancePlot(with_respect_to=self._validation),
        ]

    def _coordinates(self, quality: str) -> Any:
        return coordinates(dict.fromkeys((*_SETTINGS, *self.keys)), ("step/bytes", quality))

    def _filters(self, job_type: str) -> str:
        group = "" if self.group is None else f' and Metric("Group") == {self.group!r}'
        return f'Metric("JobType") == {job_type!r}{group}'

    def _runset(self, job_type: str, columns: Sequence[str]) -> wr.Runset:
        return wr.Runset(
            entity=self.entity,
            project=self.project,
            name={"train": "Runs", "trial": "Trials"}[job_type],
            filters=self._filters(job_type),
            pinned_columns=list(columns),
        )

    def _workspace(
        self, name: str, job_type: str, best: str, columns: Sequence[str], sections: list[ws.Section]
    ) -> ws.Workspace:
        return ws.Workspace(
            entity=self.entity,
            project=self.project,
            name=f"flsel {name}" + (f" {self.group}" if self.group else ""),
            sections=sections,
            settings=ws.WorkspaceSettings(x_axis="round", max_runs=MOST_RUNS),
            runset_settings=ws.RunsetSettings(
                filters=self._filters(job_type),
                groupby=[ws.Config("variant")],
                order=[ws.Ordering(ws.Summary(best), ascending=self.score.better == "min")],
                pinned_columns=list(columns),
            ),
        )


def publish(dashboard: Dashboard, warn: Callable[[str], None]) -> list[str]:
    """Save a dashboard in W&B, each time as new views.

    Args:
        dashboard: With its entity.
        warn: Is told in a sentence if W&B does not take the heat map's chart, and the rest is saved.

    Returns:
        Where the report and the workspaces are.

    Raises:
        Exception: Whatever W&B's library raises: no such project, no right to it, no network.
    """
    report = dashboard.report().save()
    views = [view.save() for view in dashboard.workspaces().values()]
    try:
        wandb.Api().create_custom_chart(
            entity=dashboard.entity,
            name=CHART,
            display_name="flsel: participation",
            spec_type="vega2",
            access="private",
            spec=json.loads(participation_chart()),
        )
    except Exception as error:  # the library's kinds have nothing else in common
        warn(f"W&B did not take the heat map {dashboard.entity}/{CHART}, unless it has it: {one_line(error)}")
    return [report.url, *(view.url for view in views)]
