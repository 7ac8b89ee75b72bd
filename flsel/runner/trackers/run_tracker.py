"""The trackers of one run, from start to end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flsel.config import RunConfig
from flsel.report.participation import participation_figure
from flsel.runner.build import Built
from flsel.runner.pictures import draw_partition
from flsel.runner.result import Result
from flsel.runner.trackers.loggers import make_loggers
from flsel.runner.trackers.tracker import Tracker
from flsel.runner.trackers.values import CostTotals, final_values, hyper_parameters


class RunTracker:
    """The trackers of a run: opened as its settings say, told of each evaluation and what it came to.

    Nothing is tracked before :meth:`open`.
    """

    def __init__(self) -> None:
        self._tracker = Tracker([])
        self._steps = CostTotals([])

    def open(
        self,
        config: RunConfig,
        built: Built,
        folder: Path,
        *,
        described: Mapping[str, Any],
        rows: Iterable[Mapping[str, float]],
    ) -> None:
        """Open what the settings name, and show it how the data is dealt.

        Args:
            config: The settings.
            built: The run's server and what belongs to it; its Fabric gets the loggers.
            folder: The run's folder.
            described: The settings as plain values.
            rows: The evaluations before, of a run that is resumed.
        """
        seed, selector, program = f"s{config.seed}", type(config.selector).__name__, built.program
        # Of a comparison's runs, each in a folder of its variant, the seed alone is the name.
        named = config.output.name if config.output.name != seed else None
        loggers = make_loggers(
            config.track,
            run_dir=folder,
            name=named or f"{config.track.variant or selector}-{seed}",
            resolved_config={**described, "torch_device": str(program.task.device)},
            tags=(selector, built.data.name),
        )
        program.fabric.loggers.extend(loggers)
        self._tracker = Tracker(loggers, hyper_parameters(described))
        if self.alive:
            self._tracker.image("partition", draw_partition(built, folder), built.server.round)
        self._tracker.file(folder / "config.yaml", "config")
        self._steps = CostTotals(rows)

    @property
    def alive(self) -> bool:
        """Whether there is a tracker that has not failed."""
        return self._tracker.alive

    def log(self, metrics: Mapping[str, float], round: int) -> None:
        """Log an evaluation after so many rounds, with the totals that curves are drawn over."""
        self._tracker.log({**metrics, **self._steps.after(metrics)}, round)

    def end(self, folder: Path) -> None:
        """Log the result of a run: final values, participation, its pictures and its summary.

        Args:
            folder: The run's folder, which is complete.
        """
        if not self.alive:
            return
        tracker, result = self._tracker, Result.load(folder)
        clients, rounds = result.summary["clients"], result.summary["rounds"]
        tracker.table("selection/counts", ("client", "count"), list(enumerate(result.counts.tolist())))
        visits = [(step.round, step.clients) for step in result.rounds]
        tracker.image("participation", participation_figure(visits, clients), rounds)
        tracker.image("curves", folder / "curves.png", rounds)
        tracker.summary(final_values(result))
        tracker.file(folder / "summary.json", "report")

    def close(self, status: str) -> None:
        """Finish; ``status`` is ``"success"``, or anything else for a run that did not end well."""
        self._tracker.close(status)
