"""Tables of the evidence: mean and standard deviation over seeds, the paper's number beside them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidence_cells import Cell, Experiment
from evidence_measures import Measure

Finished = Mapping[Cell, Mapping[int, Path]]
"""Folders of the finished runs of each cell, by seed."""


def tables(experiment: Experiment, finished: Finished) -> str:
    """Lay the cells out as Markdown, one table a measure."""
    made = [f"{measure.caption}\n\n{table(experiment, measure, finished)}" for measure in experiment.measures]
    return "\n".join(made)


def insert(text: str, document: Path, name: str) -> None:
    """Put tables between a document's lines ``<!-- NAME -->`` and ``<!-- end -->``.

    Raises:
        ValueError: If the document has no such place.
    """
    before, mark, rest = document.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not mark or not end:
        raise ValueError(f"{document} has no lines <!-- {name} --> and <!-- end -->.")
    document.write_text(f"{before}{mark}\n{text}\n{end}{after}")


def table(experiment: Experiment, measure: Measure, finished: Finished) -> str:
    """Lay the cells out as one Markdown table."""
    cells = [cell for cell in experiment.cells if cell in finished]
    columns = list(dict.fromkeys(cell.column for cell in cells))
    found = {
        (cell.row, cell.column): {seed: measure.of(run) for seed, run in finished[cell].items()}
        for cell in cells
    }
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row in dict.fromkeys(cell.row for cell in cells):
        if row != measure.baseline:
            shown = [_cell(measure, row, column, found) for column in columns]
            lines.append(f"| {row} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def show(values: Sequence[float | None], digits: int, *, signed: bool = False) -> str:
    """Write mean ± standard deviation of the seeds, or how many of them got there and the best of these."""
    got = [value for value in values if value is not None]
    if len(got) < len(values):
        best = f", best {min(got):g}" if got else ""
        return f"{len(got)} of {len(values)} seeds{best}"
    sign = "+" if signed else ""
    spread = f" ± {statistics.stdev(got):.{digits}f}" if len(got) > 1 else ""
    return f"{statistics.fmean(got):{sign}.{digits}f}{spread}"


def _cell(
    measure: Measure, row: str, column: str, found: Mapping[tuple[str, str], Mapping[int, float | None]]
) -> str:
    values = found.get((row, column), {})
    if measure.baseline is not None:
        base = found.get((measure.baseline, column), {})
        pairs = [(value, base.get(seed)) for seed, value in values.items()]
        gaps = [value - other for value, other in pairs if value is not None and other is not None]
        return show(gaps, measure.digits, signed=True) if gaps else ""
    if not values:
        return ""
    paper = measure.paper.get((row, column))
    return show(list(values.values()), measure.digits) + (f" ({paper})" if paper else "")
