"""What a finished run did and measured, read from its folder."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from flsel.arguments import Range, check_arguments
from flsel.errors import UserError, going_on
from flsel.files import check_folder, home, naming
from flsel.metrics import METRICS, Better, Score, first_hit
from flsel.runner.cost_axes import COST_AXES
from flsel.runner.lock import LOCK_FILE
from flsel.runner.result_files import RecordedRound, check_same, read_rounds, read_settings, read_summary
from flsel.runner.run_log import MetricsCsv

if TYPE_CHECKING:
    from torch import nn

    from flsel.config import RunConfig
    from flsel.data.population import Normalize
    from flsel.report.picture import Picture
    from flsel.runner.diagnostics import RecordedDiagnostic


@dataclass(frozen=True)
class Spent:
    """Cost of reaching a target.

    Attributes:
        value: The cost when the target was reached, or all that was spent without reaching it.
        reached: False if it was not: the true cost is then at least ``value`` (right-censored).
    """

    value: float
    reached: bool


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run, as :func:`flsel.run` returns it and :meth:`load` reads it.

    Attributes:
        folder: The run's folder.
        settings: ``config.yaml`` as plain nested values.
        summary: ``summary.json``.
        rows: ``metrics.csv``, a row an evaluation, first the initial model's.
        rounds: ``rounds.jsonl``, one entry a step.
    """

    folder: Path
    settings: dict[str, Any] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)
    rows: list[dict[str, float]] = field(repr=False)
    rounds: list[RecordedRound] = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read the folder of a finished run.

        Raises:
            UserError: If it is none, the run is not finished, another version wrote it, or a file is damaged.
        """
        folder = home(folder)
        check_folder(folder, "run", "config.yaml")
        if not (folder / "summary.json").exists():
            raise UserError(f"the run {folder} is not finished: {going_on('train', folder)}.")
        summary = read_summary(folder / "summary.json")
        settings = read_settings(folder / "config.yaml")
        rows = MetricsCsv(folder / "metrics.csv").rows()
        if not rows or rows[-1]["round"] != summary["rounds"]:
            last = f"ends with round {rows[-1]['round']}" if rows else "has no rows"
            raise UserError(f"{folder / 'metrics.csv'} {last}, but the run has {summary['rounds']} rounds.")
        check_same(folder, settings, summary, rows)
        return cls(folder, settings, summary, rows, read_rounds(folder / "rounds.jsonl", summary))

    def save(self, folder: str | Path) -> Result:
        """Copy the run's folder.

        Args:
            folder: Where to; there must be nothing yet.

        Returns:
            The copy.

        Raises:
            UserError: If there is something already, it cannot be written, or the run's folder has a link,
                which may lead to another's file.
        """
        target = home(folder)
        if target.exists():
            raise UserError(f"{target} exists; a run is never written over something else.")
        for path in self.folder.rglob("*"):
            if path.is_symlink():
                raise UserError(f"{path} is a link, which a run's folder never has: remove it.")
        with naming(target):
            shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns(LOCK_FILE))
        return Result.load(target)

    def __fspath__(self) -> str:
        """Stand for the folder, in :func:`flsel.compare` for example."""
        return str(self.folder)

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self.summary["name"])

    @property
    def selector(self) -> str:
        """Name of the selector's class."""
        return str(self.summary["selector"])

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return str(self.summary["dataset"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.summary["seed"])

    @property
    def fingerprints(self) -> dict[str, str]:
        """What stands for ``partition``, ``holdouts``, ``availability`` and initial ``model``.

        Two runs for which these are :func:`flsel.config.fingerprint.alike` are paired: they differ in what
        clients were selected and trained.
        """
        return dict(self.summary["fingerprints"])

    @property
    def final(self) -> dict[str, float]:
        """Metrics of the last evaluation, without ``seconds/*``."""
        return dict(self.summary["final"])

    @property
    def best(self) -> dict[str, float]:
        """Best metrics over the evaluations: a diagnostic, since to choose by test data is to cheat."""
        return dict(self.summary["best"])

    @property
    def self_check(self) -> dict[str, dict[str, Any]]:
        """Where ``local.check`` found that fast answers were wrong; empty where it did not.

        The keys are what was computed: ``train``, ``losses``, ``gradients`` or ``evaluation``. From ``round``
        on it was computed the plain way, clients were trained by ``sequential`` for example. Where ``late``
        is true, the rounds before took the fast answers.
        """
        return dict(self.summary["self_check"])

    @cached_property
    def history(self) -> dict[str, np.ndarray]:
        """Columns of ``metrics.csv`` by name: ``round`` is int64 ``[E]``, the others are float64 ``[E]``."""
        columns = {
            name: np.array([row[name] for row in self.rows], dtype=np.float64) for name in self.rows[0]
        }
        return columns | {"round": np.array([row["round"] for row in self.rows], dtype=np.int64)}

    def last(self, evaluations: Annotated[int, Range(1)] = 10) -> dict[str, float]:
        """Return means over the last evaluations, all but the initial model's if there are fewer.

        Raises:
            UserError: If ``evaluations`` is no whole number, or below 1.
        """
        check_arguments(Result.last, {"evaluations": evaluations})
        rows = self.rows[1:][-evaluations:] or self.rows[-1:]
        names = [name for name in self.rows[0] if name != "round"]
        return {name: math.fsum(row[name] for row in rows) / len(rows) for name in names}

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each client was selected, int64 ``[N]``."""
        clients = [client for step in self.rounds for client in step.clients]
        return np.bincount(np.array(clients, dtype=np.int64), minlength=self.summary["clients"])

    @cached_property
    def diagnostics(self) -> list[RecordedDiagnostic]:
        """The selector's estimates about the clients; empty for selectors that report none."""
        from flsel.runner.diagnostics import read_diagnostics

        return read_diagnostics(self.folder)

    @property
    def score(self) -> Score:
        """What the run is judged by: test accuracy, or what ``evaluation.score`` names."""
        return Score(**self.summary["score"])

    @property
    def ledger(self) -> dict[str, float]:
        """What the whole run cost: models, bytes, passes, trainings."""
        final = self.summary["final"].items()
        return {name.removeprefix("ledger/"): value for name, value in final if name.startswith("ledger/")}

    def to_target(
        self,
        target: float | None = None,
        *,
        cost: str = "rounds",
        metric: str | None = None,
        window: Annotated[int, Range(1)] = 1,
    ) -> Spent:
        """Return what it cost until a metric reached a target.

        Args:
            target: The target, of accuracies in (0, 1]; None is the one in the settings.
            cost: An axis of :mod:`flsel.runner.cost_axes`, such as ``rounds``, ``bytes`` (both ways) or
                ``seconds``, or a column of ``metrics.csv`` that adds up, such as ``ledger/trainings``.
            metric: What has to reach it: a column, from above if less of it is better; None is the score.
            window: Evaluations, >= 1, whose running mean counts. First hits reward jumpy curves.

        Raises:
            UserError: If there is no such column or no target, or a number is out of its range.
        """
        check_arguments(Result.to_target, {"target": target, "window": window})
        target = self.summary["target"] if target is None else target
        if target is None:
            raise UserError(f"the run {self.folder} has no target: set evaluation.target, or name one.")
        metric = self.score.column if metric is None else metric
        spent, curve = self._cost(cost), self._column(metric)
        better = METRICS[metric].better if metric in METRICS else self._direction(metric)
        better = self.score.better if metric == self.score.column else better
        if metric in METRICS and better == "max" and not 0 < target <= 1:
            raise UserError(f"target must be in (0, 1], as accuracies are shares, got {target:g}.")
        hit = first_hit(curve, target, window=window, better=better)
        return Spent(float(spent[-1 if hit is None else hit]), hit is not None)

    @cached_property
    def config(self) -> RunConfig:
        """The settings."""
        from flsel.config import RunConfig

        return RunConfig.from_file(self.folder / "config.yaml")

    def _config(self, *names: str) -> RunConfig:
        """Return the settings, but import no class that others than those named here need."""
        from flsel.config import RunConfig

        known = vars(self).get("config")  # it may hold a model object
        return known or RunConfig.from_dict(
            {name: self.settings[name] for name in names if name in self.settings}
        )

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, in eval mode on the CPU; :attr:`normalize` makes its inputs."""
        from flsel.runner.checkpoint import read_model
        from flsel.runner.trained import trained_model

        config = self._config("model", "seed")
        return trained_model(config.model, config.seed, self.summary["data"], read_model(self.folder))

    @cached_property
    def normalize(self) -> Normalize:
        """Maps the dataset's raw inputs, such as uint8 images, to the model's."""
        from flsel.runner.trained import input_normalisation

        return input_normalisation(self.summary["data"])

    def plot_curves(self) -> Picture:
        """Draw accuracy and loss over the rounds, and how often clients were selected."""
        from flsel.report.curves import curves_figure
        from flsel.report.picture import Picture

        title = f"{self.dataset}, {self.selector}, seed {self.seed}"
        target, counts = self.summary["target"], self.counts.tolist()
        figure = curves_figure(self.rows, title=title, target=target, counts=counts, score=self.score)
        return Picture(figure)

    def plot_partition(self) -> Picture:
        """Draw the partition; the dataset is loaded for it.

        Raises:
            UserError: If the dataset is missing.
        """
        from flsel.report.picture import Picture
        from flsel.runner.load_data import load_data
        from flsel.runner.pictures import partition_of

        config = self._config("data", "partition", "clients", "clients_per_round", "seed")
        dealt = load_data(config.data, config.partition, config.clients, seed=config.seed)
        return Picture(partition_of(dealt.population, self.dataset))

    def _repr_html_(self) -> str:
        from flsel.runner.result_html import result_html

        target = self.summary["target"]
        spent = None if target is None else self.to_target()
        rounds = spent.value if spent is not None and spent.reached else None
        return result_html(self.summary, self.history, target, rounds, self.folder)

    def _cost(self, name: str) -> np.ndarray:
        axis = COST_AXES.get(name)
        if name == "simulated_seconds" and "clock/seconds" not in self.history:
            raise UserError(f"cost simulated_seconds needs devices, and the run {self.folder} has none.")
        if axis is not None:
            spent = axis.spent({column: self._column(column) for column in axis.columns})
            assert spent is not None
            return spent
        column = self._column(name)
        if name != "round" and not name.startswith("ledger/"):
            raise UserError(f"cost must be {', '.join(COST_AXES)} or a column of ledger/, got {name}.")
        return column

    def _direction(self, column: str) -> Better | None:
        """Return which way one of ``evaluation.metrics`` is better."""
        found: Better | None = self.summary.get("directions", {}).get(column.partition("/")[2])
        return found

    def _column(self, name: str) -> np.ndarray:
        if name not in self.history:
            raise UserError(f"{self.folder / 'metrics.csv'} has no column {name}: {', '.join(self.history)}.")
        return self.history[name]
