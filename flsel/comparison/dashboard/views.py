"""Lay out a dashboard: the report's parts, and the saved workspaces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from flsel.comparison.dashboard.panels import (
    ACCURACY,
    MOST_RUNS,
    STEPS,
    VALIDATION,
    bar,
    coordinates,
    curve,
    participation,
    participation_chart,
    placed,
    scatter,
)
from flsel.comparison.dashboard.workspaces_internals import definition

_SETTINGS = ("variant", "selector", "partition", "availability", "clients_per_round", "seed")
_ARRIVED = "to_target/reached"
_COLUMNS = (
    "config:variant.value", "config:selector.value", "config:dataset.value", "config:partition.value",
    "config:availability.value",
    "config:seed.value", f"summary:{ACCURACY}", "summary:final/test/accuracy", "summary:rounds_to_target",
    f"summary:{_ARRIVED}", *(f"summary:{step}" for step in STEPS if step != "round"),
)  # fmt: skip
_TRIAL_COLUMNS = (
    "config:selector.value", "config:dataset.value", f"summary:{VALIDATION}", "summary:tune/status",
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
            grid = wr.PanelGrid(runsets=[self._runset("train", _COLUMNS)], panels=placed(panels))
            blocks += [wr.H2(title), wr.P(text), grid]
        table = wr.PanelGrid(runsets=[self._runset("train", _COLUMNS)], panels=[])
        blocks += [wr.H2("Runs"), wr.P("Every run; the filters above the table narrow it."), table]
        trials = wr.PanelGrid(
            runsets=[self._runset("trial", _TRIAL_COLUMNS)], panels=placed(self._search_panels())
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
            "comparison": self._workspace("comparison", "train", ACCURACY, _COLUMNS, parts),
            "sweep": self._workspace("sweep", "trial", VALIDATION, _TRIAL_COLUMNS, search),
        }

    def files(self) -> dict[str, str]:
        """Return all definitions as texts of JSON by the name of their file, in W&B's own format."""
        made = {f"workspace-{name}.json": definition(view) for name, view in self.workspaces().items()}
        chart = json.dumps(participation_chart(), indent=2) + "\n"
        return {"report.json": definition(self.report()), **made, "participation.vl.json": chart}

    def _parts(self) -> list[tuple[str, str, list[Any]]]:
        """Return title, text and panels of each part; each time new ones, as a report lays its own out."""
        return [
            (
                "Accuracy and loss",
                "Over rounds, and over what a round costs.",
                [
                    *(
                        curve("test/accuracy", step, f"Test accuracy over {axis.label}")
                        for step, axis in STEPS.items()
                    ),
                    curve("test/loss", "round", "Test loss over rounds"),
                ],
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
                "Cost against accuracy",
                "One point a run: mean test accuracy of the last ten evaluations.",
                [
                    scatter(step, f"{axis.label.capitalize()} against accuracy")
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
                [self._coordinates(ACCURACY), wr.RunComparer(diff_only=True)],
            ),
        ]

    def _search_panels(self) -> list[Any]:
        return [
            curve(VALIDATION, "round", "Validation accuracy over rounds"),
            self._coordinates(VALIDATION),
            wr.ParameterImportancePlot(with_respect_to=VALIDATION),
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
                order=[ws.Ordering(ws.Summary(best), ascending=False)],
                pinned_columns=list(columns),
            ),
        )
