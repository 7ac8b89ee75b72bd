"""Lay out a dashboard: the report's parts, and the saved workspaces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from flsel.comparison.dashboard.panels import (
    MOST_RUNS,
    STEPS,
    bar,
    coordinates,
    curve,
    participation,
    participation_chart,
    placed,
    scatter,
)
from flsel.comparison.dashboard.workspaces_internals import definition
from flsel.metrics import SCORE, Score

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
        chart = json.dumps(participation_chart(), indent=2) + "\n"
        return {"report.json": definition(self.report()), **made, "participation.vl.json": chart}

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
