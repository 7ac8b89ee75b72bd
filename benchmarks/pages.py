"""What the scripts that make pages of docs/results share: options, files of rows, tables in Markdown."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path

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


def options(text: str | None) -> argparse.ArgumentParser:
    """Return a parser of a script's options, whose help begins with its docstring as it is written."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
