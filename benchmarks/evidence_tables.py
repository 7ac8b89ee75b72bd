"""Tables of the evidence: mean and standard deviation over seeds, the paper's number beside them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidence_cells import Cell, Experiment


def table(experiment: Experiment, finished: Mapping[Cell, Sequence[Path]]) -> str:
    """Lay the cells out as a Markdown table.

    Args:
        experiment: What is shown.
        finished: Folders of the finished runs of each cell, one a seed.
    """
    cells = [cell for cell in experiment.cells if cell in finished]
    columns = list(dict.fromkeys(cell.column for cell in cells))
    lines = [
        f"### {experiment.title}",
        "",
        "| | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for row in dict.fromkeys(cell.row for cell in cells):
        runs = {cell.column: finished[cell] for cell in cells if cell.row == row}
        shown = [_cell(experiment, row, column, runs.get(column, [])) for column in columns]
        lines.append(f"| {row} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def show(values: Sequence[float | None], digits: int) -> str:
    """Write mean ± standard deviation of the seeds, or how many of them got there and the best of these."""
    got = [value for value in values if value is not None]
    if len(got) < len(values):
        best = f", best {min(got):g}" if got else ""
        return f"{len(got)} of {len(values)} seeds{best}"
    if len(got) == 1:
        return f"{got[0]:.{digits}f}"
    return f"{statistics.fmean(got):.{digits}f} ± {statistics.stdev(got):.{digits}f}"


def _cell(experiment: Experiment, row: str, column: str, folders: Sequence[Path]) -> str:
    if not folders:
        return ""
    ours = show([experiment.measure(folder) for folder in folders], experiment.digits)
    paper = experiment.paper.get((row, column))
    return ours if paper is None else f"{ours} ({paper})"
