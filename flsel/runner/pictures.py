"""The pictures in a run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flsel.config import RunConfig
from flsel.data.population import LARGE_TABLE, Population
from flsel.report.curves import curves_figure
from flsel.report.partition import partition_figure
from flsel.report.style import save_figure
from flsel.runner.build import Built

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        save_figure(partition_of(built.data.population, built.data.name), picture)
    return picture


def partition_of(population: Population, name: str) -> Figure:
    """Draw the partition of a data set, or where clients and labels are many, some of its clients."""
    shown = min(len(population), max(1, LARGE_TABLE // max(1, population.num_classes)))
    clients = np.linspace(0, len(population) - 1, shown).astype(int).tolist()
    some = f"{shown} of " * (shown < len(population)) + f"{len(population)} clients"
    return partition_figure(population.label_counts(clients).numpy(), f"{name}: {some}")
