"""What a finished run tells its trackers."""

from __future__ import annotations

from pathlib import Path

from flsel.report.participation import participation_figure
from flsel.runner.result import Result
from flsel.runner.tracked import final_values
from flsel.runner.tracking import Tracker


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
