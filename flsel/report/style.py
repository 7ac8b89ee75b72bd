"""The look that all pictures share, and how one is saved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flsel.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, PINK, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
GREY = "#555555"
GREY_LINE = "#767676"
"""Seen on white and on black."""
SHADES = "viridis"
"""Colour map of numbers."""
PANEL_INCHES = (4.4, 3.6)
_DPI = 150
# Of a legend in a size of 8 points.
_HANDLE_INCHES, _LETTER_INCHES = 0.55, 0.065


@dataclass(frozen=True)
class Style:
    """How a selector is drawn in every picture.

    Attributes:
        colour: One that colour-blind readers can distinguish, visible on white and on black.
        marker: Matplotlib's; with ``dash`` it tells selectors apart in grey.
        shape: Vega's name of the same marker.
        dash: Lengths of strokes and gaps in points; none is a solid line.
    """

    colour: str
    marker: str
    shape: str
    dash: tuple[int, ...]


_COLOURS = (GREY_LINE, BLUE, ORANGE, GREEN, PINK, "#B07D00", SKY, "#9467BD", "#A0522D")
_MARKERS = (
    ("o", "circle"), ("s", "square"), ("^", "triangle-up"), ("D", "diamond"), ("v", "triangle-down"),
    ("P", "cross"), (">", "triangle-right"), ("<", "triangle-left"),
)  # fmt: skip
_MOST = len(_COLOURS) * len(_MARKERS)  # their numbers have no common divisor, so every pair occurs
_DASHES: tuple[tuple[int, ...], ...] = ((), (6, 3), (2, 2), (8, 3, 2, 3))
# Those that meet most often are first, and so differ most.
_KNOWN = (
    "Uniform", "PowD", "FedCor", "HiCS", "DivFL", "AFL", "FedGS", "FedPNS", "ClusteredSampling", "FedCat",
    "GradientNorm", "MD", "Weighted", "ClusteredSamplingBySize", "HiCSOracle", "Complete", "OptimalSampling",
    "UCBCS", "FedCBS", "GreedyFed", "F3AST", "E3CS", "KVib", "OSMD", "FedAU", "HACCS",
)  # fmt: skip


def looks(names: Sequence[str]) -> dict[str, Style]:
    """Give every selector its look: another one for every name, and the same in every figure.

    Up to nine names have different colours: if two would share one, the name that is drawn less often gets
    another.

    Args:
        names: Selectors, or variants of them such as ``PowD:d=12``. 72 can be distinguished.
    """
    taken: dict[str, int] = {}
    for name in names:
        selector = name.split(":")[0]
        number = _KNOWN.index(selector) if selector in _KNOWN else -1
        if number >= 0 and number not in taken.values():
            taken[name] = number
    free = itertools.chain(range(len(_KNOWN), _MOST), range(len(_KNOWN)), itertools.cycle(range(_MOST)))
    for name in names:
        if name not in taken:
            taken[name] = next(
                number for number in free if number not in taken.values() or len(taken) >= _MOST
            )
    colours = dict[int, str]()
    for number in sorted(taken.values()):
        colours.setdefault(number, _free(_COLOURS[number % len(_COLOURS)], colours))
    return {name: replace(_look(number), colour=colours[number]) for name, number in taken.items()}


def _free(colour: str, used: Mapping[int, str]) -> str:
    """Return a colour, or one that a figure does not have yet, while there are such."""
    left = [other for other in _COLOURS if other not in used.values()]
    return colour if colour in left or not left else left[-1]


def _look(number: int) -> Style:
    marker, shape = _MARKERS[number % len(_MARKERS)]
    return Style(_COLOURS[number % len(_COLOURS)], marker, shape, _DASHES[number % len(_DASHES)])


@contextmanager
def own_letters(figure: Figure) -> Iterator[None]:
    """Let matplotlib draw a figure's text itself, even if ``text.usetex`` is set.

    LaTeX may not be there, and reads an underscore or a % in a name as its own.
    """
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_usetex(False)
    with matplotlib.rc_context({"text.usetex": False}):  # of ticks, which are made while it is drawn
        yield


def save_figure(figure: Figure, path: str | Path) -> None:
    """Save a figure as a PNG, whole or not at all; the same figure gives the same bytes.

    Args:
        figure: The figure.
        path: The file.

    Raises:
        UserError: If the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set_dpi(_DPI)
    # Its savefig draws twice where there is a layout: once to find it.
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib gives its printing no types
    with own_letters(figure):
        write_atomic(path, lambda stream: canvas.print_png(stream, metadata={"Software": None}))


def whole_ticks(axis: Axis) -> None:
    """Mark whole numbers only, few enough not to touch."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def tidy_axes(axes: Axes) -> None:
    """Draw a light grid behind what is drawn, and no frame at the top and the right."""
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw one legend below all panels, each label once, in as many lines as its width asks for."""
    entries = {}
    for panel in axes:
        handles, labels = panel.get_legend_handles_labels()
        entries.update(
            {label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries}
        )
    if entries:
        room = _HANDLE_INCHES + _LETTER_INCHES * max(map(len, entries))
        figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=min(len(entries), max(1, int(figure.get_figwidth() / room))),
            frameon=False,
            fontsize=8,
        )
