"""The pictures in a run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flsel.config import RunConfig
from flsel.report.curves import curves_figure
from flsel.report.partition import partition_figure
from flsel.report.style import save_figure
from flsel.runner.build import Built


def draw_curves(config: RunConfig, built: Built, rows: Sequence[Mapping[str, float]], folder: Path) -> None:
    """Draw ``curves.png``.

    Args:
        config: The settings.
        built: The run's server and what belongs to it.
        rows: Those of ``metrics.csv``.
        folder: The run's folder.
    """
    title = f"{built.data.name}, {type(config.selector).__name__}, seed {config.seed}"
    counts = built.server.counts.tolist()
    figure = curves_figure(
        rows, title=title, target=config.evaluation.target, counts=counts, score=built.server.score
    )
    save_figure(figure, folder / "curves.png")


def draw_partition(built: Built, folder: Path) -> Path:
    """Draw ``partition.png`` where it is not there, and return its path."""
    picture = folder / "partition.png"
    if not picture.exists():
        counts = built.server.federation.labels.numpy()
        save_figure(partition_figure(counts, f"{built.data.name}: {len(counts)} clients"), picture)
    return picture
