"""A sweep that has run, read from its folder: its trials, its best settings, its figures, and its resume."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flsel.arguments import shown
from flsel.arguments.spec import Spec
from flsel.config import RunConfig, model_object
from flsel.config.parser import to_types
from flsel.engine.scores import declared_directions
from flsel.errors import UserError, located
from flsel.execution.single_run import single_run
from flsel.files import check_folder, home
from flsel.report.notebook import curve, fragment, table
from flsel.report.picture import Picture
from flsel_tune.metric import SweepObjective, parse_metrics
from flsel_tune.space_file import make_space, read_space, space_entries
from flsel_tune.study import Study
from flsel_tune.sweep import resume_sweep
from flsel_tune.sweep_config import CHANGEABLE, SweepConfig, read_sweep_file
from flsel_tune.sweep_figures import draw_study, figure_names
from flsel_tune.sweep_plan import plan_sweep
from flsel_tune.write_results import Row, best_trials, trial_rows

if TYPE_CHECKING:
    import optuna
    import pandas

_SHOWN = 5
"""Trials in the table of a notebook."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep that has run, as :func:`flsel.tune` returns it and :meth:`load` reads it.

    Attributes:
        folder: Its folder.
        config: The settings of its runs that were not searched.
        settings: The sweep's own settings.
        space: What was searched, as plain values: entries by dotted key.
    """

    folder: Path
    config: RunConfig = field(repr=False)
    settings: SweepConfig = field(repr=False)
    space: Mapping[str, Any] = field(repr=False)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Sweep:
        """Read the folder of a sweep.

        Raises:
            UserError: If it is none, or a file is damaged.
        """
        place = home(folder)
        check_folder(place, "sweep", "config.yaml", "sweep.yaml", "space.yaml")
        config, space = RunConfig.from_file(place / "config.yaml"), read_space(str(place / "space.yaml"))
        stored = read_sweep_file(str(place / "sweep.yaml"))
        with located(str(place / "sweep.yaml")):
            settings = SweepConfig(**to_types("", SweepConfig, stored))
        with located(str(place / "space.yaml")), model_object.at_hand([config.model]):
            make_space(space, config.to_dict())
        return cls(place, config, settings, space)

    def resume(
        self,
        *,
        trials: int | None = None,
        max_concurrent: int | None = None,
        gpus: float | None = None,
        memory: float | None = None,
        address: str | None = None,
        retries: int | None = None,
        space: str | PathLike[str] | Mapping[str, Any] | None = None,
        retry_failed: bool = False,
        pictures: bool = False,
    ) -> Sweep:
        """Finish the sweep, or add trials to it.

        Args:
            trials: Trials in all, those before included.
            max_concurrent: Most trials at a time.
            gpus: GPUs of a trial; a sweep on CPUs stays on them.
            memory: Gigabytes reserved for a trial.
            address: Ray cluster to use.
            retries: How often a trial whose process died is resumed.
            space: A space that contains the sweep's own, as :func:`flsel.tune` takes it.
            retry_failed: Try trials that failed once more, under new numbers.
            pictures: Draw the figures into the sweep's folder.

        Returns:
            The sweep with what is new; None keeps a setting as it was.

        Raises:
            UserError: If a setting does not fit, a file was changed, or no trial was completed.
            Interrupted: If a signal stopped it; it can be resumed.
        """
        asked = {key: value for key, value in locals().items() if key in CHANGEABLE and value is not None}
        changed = replace(self.settings, **asked)
        entries = self.space
        if space is not None:
            name, entries = space_entries(space, self.config.to_dict())
            changed = replace(changed, space=name)
        return self.resume_with(changed, entries, retry_failed=retry_failed, pictures=pictures)

    def resume_with(
        self,
        settings: SweepConfig,
        entries: Mapping[Any, Any],
        *,
        retry_failed: bool,
        pictures: bool = True,
    ) -> Sweep:
        """Finish the sweep with the settings that a resume may change.

        Args:
            settings: Those of the sweep.
            entries: Its space, as a file has it: its own, or one that contains it.
            retry_failed: As for :meth:`resume`.
            pictures: As for :meth:`resume`.

        Raises:
            UserError: As :meth:`resume`.
            Interrupted: As :meth:`resume`.
        """
        _refuse_change(self.settings, settings, self.folder)
        with single_run(), model_object.at_hand([self.config.model]):
            plan = replace(plan_sweep(self.config, settings, entries), pictures=pictures)
            resume_sweep(plan, self.folder, retry_failed=retry_failed)
            return Sweep.load(self.folder).with_config(self.config)

    @property
    def study(self) -> optuna.Study:
        """Optuna's study, for its own tools."""
        return self._study.study

    @cached_property
    def trials(self) -> list[Row]:
        """A row for each trial, as in ``trials.json``: status, values, seeds, round, error, settings."""
        return trial_rows(self._study, self.metrics)

    @property
    def table(self) -> pandas.DataFrame:
        """One row for each trial, with a column for each setting that was searched."""
        import pandas

        rows = [{**row, **row["settings"]} for row in self.trials]
        return pandas.DataFrame(rows).drop(columns="settings", errors="ignore")

    @cached_property
    def best(self) -> RunConfig:
        """The best trial's run, for :func:`flsel.run`: with several metrics the first of the Pareto front.

        Raises:
            UserError: If no trial is complete yet.
        """
        self._best_row()
        config = RunConfig.from_file(self.folder / "best.yaml")
        kept = isinstance(config.model, Spec) and self.config.to_dict()["model"] == config.to_dict()["model"]
        return replace(config, model=self.config.model) if kept else config

    @property
    def best_settings(self) -> dict[str, Any]:
        """The settings that the best trial changed, by dotted key.

        Raises:
            UserError: If no trial is complete yet.
        """
        return dict(self._best_row()["settings"])

    @property
    def best_value(self) -> float:
        """The first metric's value of the best trial, the mean over the sweep's seeds.

        Raises:
            UserError: If no trial is complete yet.
        """
        return float(self._best_row()[self.metrics[0].text])

    @property
    def figures(self) -> list[str]:
        """Names of the figures that :meth:`plot` can draw of the trials so far."""
        return figure_names(self._study, self.metrics)

    def plot(self, name: str = "history") -> Picture:
        """Draw one of :attr:`figures` by Optuna.

        Raises:
            UserError: If the trials allow no such figure.
        """
        return Picture(draw_study(self._study, self.metrics, name))

    def _best_row(self) -> Row:
        best = best_trials(self._study)
        if not best:
            raise UserError(f"no trial of {self.folder} is complete yet, so there is no best one.")
        return self.trials[best[0].number]

    @property
    def metrics(self) -> tuple[SweepObjective, ...]:
        """What the sweep optimises."""
        own = declared_directions(self.config.evaluation)
        return parse_metrics(self.settings.metric or "validation/accuracy", self.settings.mode, own)

    def with_config(self, config: RunConfig) -> Sweep:
        """Return it with settings at hand: they may hold a model object, which config.yaml cannot."""
        return replace(self, config=config)

    @cached_property
    def _study(self) -> Study:
        return Study(
            self.folder,
            self.folder.name,
            metrics=self.metrics,
            config=self.settings,
            rounds=self.config.rounds,
            seed=self.config.seed,
        )

    def _repr_html_(self) -> str:
        done = [row for row in self.trials if row["status"] == "complete"]
        metric = self.metrics[0]
        if not done:
            return fragment(f"{len(self.trials)} trials, none complete yet", footer=str(self.folder))
        ranked = sorted(done, key=lambda row: row[metric.text], reverse=metric.mode == "max")
        keys = list(dict.fromkeys(key for row in ranked[:_SHOWN] for key in row["settings"]))
        rows = [[r["trial"], r[metric.text], *(r["settings"].get(k) for k in keys)] for r in ranked[:_SHOWN]]
        values = [float(row[metric.text]) for row in done]
        best = [(max if metric.mode == "max" else min)(values[: n + 1]) for n in range(len(values))]
        numbers = [float(row["trial"]) for row in done]
        picture = ""
        if len(done) > 1 and all(map(math.isfinite, values)):
            picture = curve(numbers, best, across="trial", up=f"best {metric.text}", points=values)
        headline = (
            f"Best of {len(self.trials)} trials: {metric.text} {self.best_value:.4g} in trial "
            f"{self._best_row()['trial']}."
        )
        return fragment(headline, table(["trial", metric.text, *keys], rows), picture, str(self.folder))


def _refuse_change(before: SweepConfig, after: SweepConfig, folder: Path) -> None:
    old, new = asdict(before), asdict(after)
    changed = [name for name in old if old[name] != new[name] and name not in (*CHANGEABLE, "space")]
    if (before.gpus > 0) != (after.gpus > 0):
        changed = ["gpus"]
    if changed:
        named = "--from" if changed[0] == "start_from" else changed[0]
        raise UserError(
            f"{named} must stay {shown(old[changed[0]])} when {folder} is resumed, got "
            f"{shown(new[changed[0]])}; start a new sweep to change it."
        )
