"""Draw the test curves of several runs in one picture.

    python docs/plot_runs.py --output curves.png Uniform=runs/a,runs/b PowD=runs/c,runs/d

The runs of one label differ in their seed: the line is their mean, the band reaches from the lowest to the
highest of them. ``--smooth`` averages that many neighbouring evaluations, which the picture then says.
"""

from __future__ import annotations

import argparse
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flsel.runner.record import MetricsCsv

# Okabe and Ito's colours, told apart by colour-blind readers; the line styles tell them apart in grey.
STYLES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"))
PANELS = (("test/accuracy", "test accuracy"), ("test/loss", "test loss (nats)"))


def main() -> None:
    """Read the command line and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="LABEL=FOLDER[,FOLDER...]")
    parser.add_argument("--output", type=Path, required=True, help="PNG file")
    parser.add_argument("--title", default="")
    parser.add_argument("--smooth", type=int, default=1, help="evaluations in a running mean")
    arguments = parser.parse_args()
    groups = [run.partition("=")[::2] for run in arguments.runs]
    figure = Figure(figsize=(9, 3.6), dpi=120, layout="constrained")
    figure.suptitle(arguments.title, fontsize=11)
    for axes, (metric, name) in zip(figure.subplots(1, 2), PANELS, strict=True):
        for (label, folders), (colour, line) in zip(groups, cycle(STYLES)):
            curves = [read(Path(folder), metric, arguments.smooth) for folder in folders.split(",")]
            draw(axes, curves, label=label, colour=colour, line=line)
        axes.set(xlabel="communication round", ylabel=name)
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    if arguments.smooth > 1:
        figure.supxlabel(f"running mean of {arguments.smooth} evaluations", fontsize=8, color="#555555")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output)


def read(folder: Path, metric: str, smooth: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rounds and values of a run's metric, each ``[n]``."""
    rows = MetricsCsv(folder / "metrics.csv").rows()
    if not rows:
        raise SystemExit(f"{folder} holds no evaluations: give the folder of a run.")
    rounds, values = (np.array([row[key] for row in rows], dtype=float) for key in ("round", metric))
    window = np.ones(smooth) / smooth
    return np.convolve(rounds, window, "valid"), np.convolve(values, window, "valid")


def draw(
    axes: Axes, curves: list[tuple[np.ndarray, np.ndarray]], *, label: str, colour: str, line: str
) -> None:
    """Draw the mean of curves over the same rounds, and their range."""
    shortest = min(len(values) for _, values in curves)
    rounds = curves[0][0][:shortest]
    table = np.stack([values[:shortest] for _, values in curves])
    seeds = f" ({len(curves)} seeds)" if len(curves) > 1 else ""
    axes.plot(rounds, table.mean(axis=0), color=colour, linestyle=line, linewidth=1.5, label=label + seeds)
    if len(curves) > 1:
        axes.fill_between(rounds, table.min(axis=0), table.max(axis=0), color=colour, alpha=0.18, linewidth=0)


if __name__ == "__main__":
    main()
