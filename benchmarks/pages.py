"""What the scripts that make pages of docs/results share: options, files of rows, tables in Markdown."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from flsel.comparison.comparison_file import read_declaration

END = "<!-- end -->"


def put(text: str, name: str, table: str) -> str:
    """Return a page with a table put in its place.

    Raises:
        ValueError: If the page has no place of that name.
    """
    before, start, rest = text.partition(f"<!-- table {name} -->\n")
    if not start:
        raise ValueError(f"there is no place for {name}")
    return f"{before}{start}\n{table}\n\n{END}{rest.partition(END)[2]}"


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    columns = list(head)
    lines = ["| " + " | ".join(line) + " |" for line in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def whole_blocks(folder: Path) -> Iterator[tuple[str, int, dict[str, Path]]]:
    """Yield scenario, seed and the run of each variant, where a comparison has run all variants."""
    grid, _, _ = read_declaration(folder)
    runs = {(cell.scenario, cell.seed, cell.variant): folder / cell.folder for cell in grid.cells()}
    for scenario in grid.scenarios:
        for seed in grid.seeds:
            block = {each.name: runs[scenario.name, seed, each.name] for each in grid.variants}
            if all((run / "summary.json").exists() for run in block.values()):
                yield scenario.name, seed, block


def update_rows(path: Path, head: list[str], rows: Iterable[Iterable[object]], *, key: int) -> None:
    """Write rows to a CSV file. A row takes the place of the one that begins with the same ``key`` cells.

    Other rows of the file stay, so that seeds and scenarios that another machine has run are kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    old = [list(row.values()) for row in read_rows(path)] if path.exists() else []
    lines = {tuple(row[:key]): row for row in (*old, *([str(cell) for cell in row] for row in rows))}
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *lines.values()])


def options(text: str | None) -> argparse.ArgumentParser:
    """Return a parser of a script's options, whose help begins with its docstring as it is written."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
