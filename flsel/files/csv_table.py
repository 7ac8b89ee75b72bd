"""CSV tables whose columns have names, with one sentence for what is wrong in them."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence

from flsel.errors import UserError, short
from flsel.files.read_user_files import user_bytes

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def csv_rows(key: str, path: str, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the lines' numbers and their fields by the names of the columns.

    Args:
        key: The setting that names the file, for messages.
        path: The file.
        wanted: Columns that it must have.

    Raises:
        UserError: If the file is unreadable, has no rows, lacks a column, or a row has another length.
    """
    raw = user_bytes(key, path, "a CSV file")
    try:
        # Spreadsheets write a mark before the first name.
        reader = csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""), skipinitialspace=True)
        lines = [(reader.line_num, fields) for fields in reader if fields]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{key} must name a CSV file that can be read, got {path}: {short(error)}."
        ) from error
    head = [name.strip() for name in lines[0][1]] if lines else []
    wrong = _wrong(head, len(lines), wanted)
    if wrong:
        raise UserError(
            f"{key} must name a CSV file with the columns {','.join(wanted)}, got {path} {wrong}."
        )
    for line, fields in lines[1:]:
        if len(fields) != len(head):
            raise UserError(
                f"{key} must have {len(head)} numbers in each row, {path} has {len(fields)} in line "
                f"{line}: separate them by commas, with points for decimals."
            )
        yield line, dict(zip(head, fields, strict=True))


def csv_number(
    key: str,
    place: tuple[str, int],
    row: dict[str, str],
    name: str,
    *,
    whole: bool = False,
    zero: bool = False,
) -> float:
    """Return a number of a row.

    Args:
        key: The setting that names the file, for messages.
        place: The file and the line.
        row: The line's fields.
        name: The column.
        whole: Whether the number must be whole.
        zero: Whether it may be zero; it must be positive otherwise.

    Raises:
        UserError: If it is another one, or none.
    """
    try:
        text = row[name].strip()
        if not _NUMBER.fullmatch(text):
            raise ValueError(text)
        number = int(text) if whole else float(text)
        fits = math.isfinite(number) and (number >= 0 if zero else number > 0)
    except (ValueError, OverflowError):
        fits = False
    if not fits:
        rule = f"{'a whole number' if whole else 'a finite number'} {'>= 0' if zero else '> 0'}"
        path, line = place
        raise UserError(
            f"{key} must give {rule} as {name}, {path} has {short(row[name], 60)!r} in line {line}."
        )
    return number


def _wrong(head: Sequence[str], lines: int, wanted: Sequence[str]) -> str:
    """Say what is wrong with the names of the columns; empty if nothing is."""
    lacks = [name for name in wanted if name not in head]
    other = next((mark for mark in ";\t" if mark in "".join(head)), None)
    if lacks and other is not None:
        return f"whose columns are separated by {'semicolons' if other == ';' else 'tabs'}: use commas"
    if lines < 2:
        return "without rows"
    if lacks:
        return f"without {','.join(lacks)}"
    twice = next((name for name in head if head.count(name) > 1), None)
    return f"with two columns {twice}" if twice is not None else ""
