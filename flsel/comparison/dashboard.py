"""A W&B project's dashboard: a report and two saved workspaces, made of the library's own classes.

Everything names what runs log (:mod:`flsel.runner.trackers.values`). Only publishing turns to the network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces.reports.v2 import internal

from flsel.runner.trackers.wandb_run import one_line

CHART = "flsel-participation"
COUNTS = "selection/counts"
_ACCURACY, _VALIDATION = "last10/test/accuracy", "validation/accuracy"
_STEPS = {
    "round": "rounds",
    "step/bytes": "bytes sent",
    "step/passes": "passes over clients' data",
    "step/seconds": "seconds of playing",
}
# Means over fewer runs than there are would be wrong and look right; W&B's own limit is ten.
_MOST_RUNS = 1000
_SETTINGS = ("variant", "selector", "partition", "availability", "budget", "seed")
_ARRIVED = "to_target/reached"
_COLUMNS = (
    "config:variant.value", "config:selector.value", "config:dataset.value", "config:partition.value",
    "config:availability.value",
    "config:seed.value", f"summary:{_ACCURACY}", "summary:final/test/accuracy", "summary:rounds_to_target",
    f"summary:{_ARRIVED}", "summary:step/bytes", "summary:step/passes", "summary:step/seconds",
)  # fmt: skip
_TRIAL_COLUMNS = (
    "config:selector.value", "config:dataset.value", f"summary:{_VALIDATION}", "summary:tune/status",
    "summary:step/bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Dashboard:
    """What a dashboard shows.

    Attributes:
        project: W&B project of the runs.
        entity: W&B user or team; empty before publishing, where it is not known.
        group: W&B group, the name of a comparison or of a sweep, that alone is shown; None shows all.
        keys: Settings that the parallel coordinates show besides, such as ``selector.d``.
    """

    project: str
    entity: str = ""
    group: str | None = None
    keys: tuple[str, ...] = ()

    def report(self) -> wr.Report:
        """Build the report; with an entity the library asks W&B for the project when it is saved."""
        blocks: list[Any] = [
            wr.P(
                "Curves and bars are means over the runs of a variant, bands one standard deviation. "
                "Whether a difference is more than chance says flsel compare, which pairs the seeds."
            )
        ]
        for title, text, panels in self._parts():
            grid = wr.PanelGrid(runsets=[self._runset("train", _COLUMNS)], panels=_placed(panels()))
            blocks += [wr.H2(title), wr.P(text), grid]
        table = wr.PanelGrid(runsets=[self._runset("train", _COLUMNS)], panels=[])
        blocks += [wr.H2("Runs"), wr.P("Every run; the filters above the table narrow it."), table]
        trials = wr.PanelGrid(
            runsets=[self._runset("trial", _TRIAL_COLUMNS)], panels=_placed(self._search_panels())
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
        parts = [ws.Section(title, panels=panels(), is_open=True) for title, _, panels in self._parts()]
        search = [ws.Section("Search", panels=self._search_panels(), is_open=True)]
        return {
            "comparison": self._workspace("comparison", "train", _ACCURACY, _COLUMNS, parts),
            "sweep": self._workspace("sweep", "trial", _VALIDATION, _TRIAL_COLUMNS, search),
        }

    def files(self) -> dict[str, str]:
        """Return all definitions as texts of JSON by the name of their file, in W&B's own format."""
        made = {f"workspace-{name}.json": _text(view) for name, view in self.workspaces().items()}
        chart = json.dumps(participation_chart(), indent=2) + "\n"
        return {"report.json": _text(self.report()), **made, "participation.vl.json": chart}

    def _parts(self) -> list[tuple[str, str, Callable[[], list[Any]]]]:
        return [
            (
                "Accuracy and loss",
                "Over rounds, and over what a round costs.",
                lambda: [
                    *(
                        _curve("test/accuracy", step, f"Test accuracy over {of}")
                        for step, of in _STEPS.items()
                    ),
                    _curve("test/loss", "round", "Test loss over rounds"),
                ],
            ),
            (
                "Rounds to the target",
                "A run that never arrives counts with all rounds it played, so that a bar is a lower bound "
                "where not all arrived; the table says which did.",
                lambda: [
                    _bar("to_target/round", "Rounds to the target (at least)"),
                    _bar("to_target/bytes_down", "Bytes to clients until the target (at least)"),
                ],
            ),
            (
                "Cost against accuracy",
                "One point a run: mean test accuracy of the last ten evaluations.",
                lambda: [
                    _scatter("step/bytes", "Bytes sent against accuracy"),
                    _scatter("step/passes", "Passes against accuracy"),
                ],
            ),
            (
                "Participation",
                "How often each client took part: the heat map has a row for each run.",
                self._participation_panels,
            ),
            (
                "Settings and results",
                "A line for each run, and in which settings runs differ.",
                lambda: [self._coordinates(("step/bytes", _ACCURACY)), wr.RunComparer(diff_only=True)],
            ),
        ]

    def _participation_panels(self) -> list[Any]:
        return [
            wr.CustomChart(
                query={"summaryTable": {"tableKey": COUNTS}},
                chart_name=f"{self.entity}/{CHART}" if self.entity else CHART,
                chart_fields={"client": "client", "count": "count"},
                chart_strings={"title": "Rounds that a client took part in"},
            ),
            wr.WeavePanelSummaryTable(table_name=COUNTS),
            _curve("selection/distinct", "round", "Clients that took part at least once"),
            _curve("selection/variance", "round", "Variance of the selection counts"),
        ]

    def _search_panels(self) -> list[Any]:
        return [
            _curve(_VALIDATION, "round", "Validation accuracy over rounds"),
            self._coordinates(("step/bytes", _VALIDATION)),
            wr.ParameterImportancePlot(with_respect_to=_VALIDATION),
        ]

    def _coordinates(self, results: Sequence[str]) -> wr.ParallelCoordinatesPlot:
        settings = dict.fromkeys((*_SETTINGS, *self.keys))
        columns = [_Setting(metric=wr.Config(key), display_name=key) for key in settings]
        columns += [wr.ParallelCoordinatesPlotColumn(metric=wr.SummaryMetric(name)) for name in results]
        return wr.ParallelCoordinatesPlot(title="Settings and results", columns=columns)

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
            settings=ws.WorkspaceSettings(x_axis="round", max_runs=_MOST_RUNS),
            runset_settings=ws.RunsetSettings(
                filters=self._filters(job_type),
                groupby=[ws.Config("variant")],
                order=[ws.Ordering(ws.Summary(best), ascending=False)],
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
            spec=participation_chart(),
        )
    except Exception as error:  # the library's kinds have nothing else in common
        warn(f"W&B did not take the heat map {dashboard.entity}/{CHART}, unless it has it: {one_line(error)}")
    return [report.url, *(view.url for view in views)]


def participation_chart() -> dict[str, Any]:
    """Return the heat map of participation as W&B's custom charts want it: Vega-Lite with their fields."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": "${string:title}",
        "data": {"name": "wandb"},
        # The runs of several settings have one name.
        "transform": [{"calculate": "datum.id ? datum.name + ' ' + datum.id : datum.name", "as": "run"}],
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {"field": "${field:client}", "type": "ordinal", "title": "client"},
            "y": {"field": "run", "type": "nominal", "title": None},
            "color": {
                "field": "${field:count}",
                "type": "quantitative",
                "title": "rounds",
                "scale": {"scheme": "viridis"},
            },
        },
    }


class _Setting(wr.ParallelCoordinatesPlotColumn):  # type: ignore[misc]
    """A setting by its whole dotted key: runs store them flat, and the library's own column nests them."""

    def _to_model(self) -> Any:
        return internal.Column(accessor=f"config:{self.metric.name}.value", display_name=self.display_name)


def _curve(metric: str, step: str, title: str) -> wr.LinePlot:
    return wr.LinePlot(
        title=title,
        x=step,
        y=[metric],
        title_x=_STEPS[step],
        groupby=wr.Config("variant"),
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        smoothing_type="none",
        max_runs_to_show=_MOST_RUNS,
    )


def _bar(metric: str, title: str) -> wr.BarPlot:
    return wr.BarPlot(
        title=title,
        metrics=[metric],
        orientation="h",
        groupby=wr.Config("variant"),
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        max_runs_to_show=_MOST_RUNS,
    )


def _scatter(cost: str, title: str) -> wr.ScatterPlot:
    return wr.ScatterPlot(title=title, x=wr.SummaryMetric(cost), y=wr.SummaryMetric(_ACCURACY))


def _placed(panels: list[Any]) -> list[Any]:
    """Lay panels out in two columns of the report's grid, which is 24 wide."""
    for at, panel in enumerate(panels):
        panel.layout = wr.Layout(x=at % 2 * 12, y=at // 2 * 8, w=12, h=8)
    return panels


def _text(made: wr.Report | ws.Workspace) -> str:
    return str(made._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)) + "\n"
