"""Draw which clients took part in which communication rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flsel.report.style import SHADES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More lines or columns than this are narrower than a pixel.
_CELLS = 300


def participation_figure(visits: Sequence[tuple[int, Sequence[int]]], clients: int) -> Figure:
    """Draw in which share of rounds every client took part; neighbours share a cell where there are many.

    Args:
        visits: The communication round that a step began with, and who was visited in it.
        clients: N.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    rounds = max((round for round, _ in visits), default=0) + 1
    lines, columns = min(clients, _CELLS), min(rounds, _CELLS)
    table = np.zeros((lines, columns))
    for round, visited in visits:
        for client in visited:
            table[client * lines // clients, round * columns // rounds] += 1
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        table * (lines / clients) * (columns / rounds),
        aspect="auto", cmap=SHADES, interpolation="nearest", vmin=0, extent=(0, rounds, clients, 0),
    )  # fmt: skip
    axes.set_xlabel("communication round")
    axes.set_ylabel("client")
    figure.colorbar(image, ax=axes, label="share of rounds", format=PercentFormatter(1.0))
    return figure
