"""The trackers of a run: opened as its settings say, and told at the end what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flsel.config import RunConfig
from flsel.report.participation import participation_figure
from flsel.runner.build import Built
from flsel.runner.pictures import draw_partition
from flsel.runner.result import Result
from flsel.runner.trackers.loggers import make_loggers
from flsel.runner.trackers.tracker import Tracker
from flsel.runner.trackers.values import final_values, hyper_parameters


def open_tracker(config: RunConfig, built: Built, folder: Path, described: Mapping[str, Any]) -> Tracker:
    """Open what the settings name, and show it how the data is dealt.

    Args:
        config: The settings.
        built: The run's server and what belongs to it; its Fabric gets the loggers.
        folder: The run's folder.
        described: The settings as plain values.
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
    tracker = Tracker(loggers, hyper_parameters(described))
    if tracker.alive:
        tracker.image("partition", draw_partition(built, folder), built.server.round)
    tracker.file(folder / "config.yaml", "config")
    return tracker


def tell_end(tracker: Tracker, folder: Path) -> None:
    """Tell a run's trackers what it came to: final values, who took part, its pictures and its summary.

    Args:
        tracker: The trackers.
        folder: The run's folder, which is complete.
    """
    result = Result.load(folder)
    clients, rounds = result.summary["clients"], result.summary["rounds"]
    tracker.table("selection/counts", ("client", "count"), list(enumerate(result.counts.tolist())))
    visits = [(played.round, played.clients) for played in result.rounds]
    tracker.image("participation", participation_figure(visits, clients), rounds)
    tracker.image("curves", folder / "curves.png", rounds)
    tracker.summary(final_values(result))
    tracker.file(folder / "summary.json", "report")
