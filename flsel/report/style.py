"""The look that all pictures share, and how one is saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flsel.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers.
BLUE, ORANGE, GREEN, PINK, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
GREY = "#555555"
LIGHT = "#AAAAAA"
SHADES = "viridis"
"""Colour map of numbers."""
PANEL_INCHES = (4.4, 3.6)
_DPI = 150


def save_figure(figure: Figure, path: str | Path) -> None:
    """Save a figure as a PNG, whole or not at all; the same figure gives the same bytes.

    Args:
        figure: The figure.
        path: The file.

    Raises:
        UserError: If the file cannot be written.
    """
    write_atomic(
        path, lambda stream: figure.savefig(stream, format="png", dpi=_DPI, metadata={"Software": None})
    )


def whole_ticks(axis: Axis) -> None:
    """Mark whole numbers only, few enough not to touch."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def tidy(axes: Axes) -> None:
    """Draw a light grid behind what is drawn, and no frame at the top and the right."""
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw one legend below all panels, each label once."""
    entries = {}
    for panel in axes:
        handles, labels = panel.get_legend_handles_labels()
        entries.update(
            {label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries}
        )
    if entries:
        figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=len(entries),
            frameon=False,
            fontsize=8,
        )
