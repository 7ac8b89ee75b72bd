"""The partition picture: how many examples of which label each client has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Up to here every client keeps a column of its own that can be told from its neighbours.
SEPARABLE = 40
# More columns than this are narrower than a pixel and would only slow the drawing down.
COLUMNS = 2000


def partition_figure(counts: np.ndarray, title: str) -> Figure:
    """Draw the partition: sizes above, label mixes below, one column a client.

    The lower panel shows which share of a client's examples has each label; white is none. Shares are on a
    square-root scale, so that rare labels can be seen. Beyond 2,000 clients, columns are averages of
    neighbours.

    Args:
        counts: Examples per client and label, int64 ``[N, C]`` with N, C >= 1.
        title: Heading of the picture.

    Returns:
        A figure that belongs to no window and no global state; ``figure.savefig(path)`` writes it.
    """
    from matplotlib.figure import Figure

    clients, labels = counts.shape
    width = float(np.clip(4 + 0.09 * clients, 7, 11))
    height = float(np.clip(2.4 + 0.22 * labels, 3.6, 7.5))
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    figure.suptitle(title, fontsize=11)
    grid = figure.add_gridspec(
        2, 2, height_ratios=[1.2, height - 1.8], width_ratios=[1, 0.018], hspace=0.02, wspace=0.02
    )
    mixes = figure.add_subplot(grid[1, 0])
    sizes = figure.add_subplot(grid[0, 0], sharex=mixes)
    _draw_sizes(sizes, counts.sum(axis=1))
    _draw_mixes(mixes, figure.add_subplot(grid[1, 1]), counts)
    return figure


def _draw_sizes(axes: Axes, sizes: np.ndarray) -> None:
    shown = _condense(sizes[:, None])[:, 0]
    edges = np.linspace(-0.5, len(sizes) - 0.5, len(shown) + 1)
    axes.stairs(shown, edges, fill=True, color="#4c6a92", linewidth=0)
    if len(sizes) <= SEPARABLE:
        axes.vlines(edges[1:-1], 0, np.minimum(shown[:-1], shown[1:]), color="white", linewidth=1)
    median = float(np.median(sizes))
    axes.axhline(median, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_ylim(0, max(float(shown.max()), 1.0) * 1.15)
    axes.set_ylabel("examples")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(
        f"min {sizes.min():,}   median {median:,.0f} (dashed)   max {sizes.max():,}",
        fontsize=8,
        loc="right",
        pad=3,
    )
    axes.tick_params(labelbottom=False, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_mixes(axes: Axes, bar: Axes, counts: np.ndarray) -> None:
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    clients, labels = counts.shape
    shares = _condense(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)).T
    image = axes.imshow(
        np.ma.masked_equal(shares, 0.0),
        aspect="auto",
        cmap="YlGnBu",
        norm=PowerNorm(0.5, vmin=0.0, vmax=float(shares.max()) or 1.0),
        interpolation="nearest",
        extent=(-0.5, clients - 0.5, labels - 0.5, -0.5),
    )
    if clients <= SEPARABLE:
        axes.vlines(np.arange(0.5, clients - 1), -0.5, labels - 0.5, color="white", linewidth=1)
    axes.set_xlabel("client")
    axes.set_ylabel("label")
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(min(labels, 12), integer=True, min_n_ticks=1))
    axes.tick_params(labelsize=8)
    axes.figure.colorbar(image, cax=bar, format=PercentFormatter(1.0))
    bar.set_ylabel("share of the client's examples", fontsize=8)
    bar.tick_params(labelsize=8)


def _condense(rows: np.ndarray) -> np.ndarray:
    """Average neighbouring rows of ``[N, n]`` down to at most ``COLUMNS`` of them."""
    if len(rows) <= COLUMNS:
        return rows.astype(np.float64)
    return np.stack([block.mean(axis=0) for block in np.array_split(rows, COLUMNS)])
