"""A run's own account, which every report reads: ``rounds.jsonl``, ``metrics.csv``, ``summary.json``.

Trackers are sinks; these files are the source of truth. They grow by whole lines, so a killed run loses at
most the line it was writing. A checkpoint marks how far they had grown, and a resumed run goes back there.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from flsel.errors import UserError
from flsel.files import check_regular, naming, open_own, write_atomic
from flsel.metrics import current_name

SUMMARY_FORMAT = 1
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


@dataclass(frozen=True)
class Mark:
    """How far a file had grown.

    Attributes:
        lines: Whole lines, >= 0.
        bytes: Their length, >= 0.
        sha256: Their hash.
    """

    lines: int = 0
    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()


class _Lines:
    """A file that grows by whole lines and knows how far it has grown."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        self.path = path
        self._count = self._bytes = 0
        self._ours = False  # since rewind(), until another process writes to it
        self._hash = hashlib.sha256()

    def append(self, text: str) -> None:
        """Add whole lines and hand them to the operating system.

        Raises:
            UserError: If the file cannot be written, or is not as the last call left it.
        """
        data = text.encode()
        with naming(self.path), os.fdopen(open_own(self.path, _APPEND), "ab") as stream:
            if self._ours and stream.tell() != self._bytes:
                raise UserError(f"{self.path} was removed or changed while the run was writing it.")
            stream.write(data)
        self._count += data.count(b"\n")
        self._bytes += len(data)
        self._hash.update(data)

    @property
    def grows(self) -> bool:
        """Whether it has lines, and this process alone has written to it since :meth:`rewind`."""
        return self._ours and self._count > 0

    def mark(self) -> Mark:
        """Return how far it has grown; it is for the caller to make that survive a power loss."""
        return Mark(self._count, self._bytes, self._hash.hexdigest())

    def check(self, mark: Mark) -> None:
        """Refuse a file that no longer holds what it held at a mark."""
        remedy = "; put the file back, or start a new run with --config"
        counts_on = f"the checkpoint counts on its first {mark.lines} lines"
        if mark.bytes and not self.path.exists():
            raise UserError(f"{self.path} is missing, and {counts_on}{remedy}.")
        held = self._head(mark.bytes)
        if len(held) < mark.bytes:
            lines = held.count(b"\n")
            raise UserError(f"{self.path} ends after {lines} lines, and {counts_on}{remedy}.")
        if hashlib.sha256(held).hexdigest() != mark.sha256:
            raise UserError(f"{self.path} was changed or damaged, and {counts_on}{remedy}.")

    def rewind(self, mark: Mark) -> None:
        """Drop what was appended after a mark that :meth:`check` found in order."""
        if self.path.exists():
            with naming(self.path), os.fdopen(open_own(self.path, os.O_WRONLY), "wb") as stream:
                stream.truncate(mark.bytes)
        self._count, self._bytes, self._ours = mark.lines, mark.bytes, True
        self._hash = hashlib.sha256(self._head(mark.bytes))

    def __iter__(self) -> Iterator[bytes]:
        """Yield the whole lines; a torn last one is left out."""
        if self.path.exists():
            with open(self.path, "rb") as stream:
                yield from (line for line in stream if line.endswith(b"\n"))

    def _head(self, length: int) -> bytes:
        if not self.path.exists():
            return b""
        with open(self.path, "rb") as stream:
            return stream.read(length)


class JsonLines:
    """An append-only file of one JSON object a line, each with the key ``round``.

    Numbers are stored with all their digits; non-finite ones as ``NaN`` and ``Infinity``. NumPy values and
    tensors become numbers and lists.

    Args:
        path: The file; its folder exists, itself it need not.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lines = _Lines(self.path)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one object and hand it to the operating system.

        Args:
            row: The object; ``row["round"]`` is an integer.

        Raises:
            UserError: If the file cannot be written.
        """
        self.lines.append(_dump(row, separators=(",", ":")) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return all objects; a torn last line is left out.

        Raises:
            UserError: If a complete line is not a JSON object.
        """
        return [self._parse(number, line) for number, line in enumerate(self.lines, 1)]

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row: dict[str, Any] = json.loads(line)
            row["round"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(
                f"{self.path} must hold one JSON object with the key `round` a line, "
                f"line {number} is damaged."
            ) from None
        return row


class MetricsCsv:
    """A table of numbers, one row an evaluation; the first column is ``round``.

    The first row fixes the columns. Floats are stored with all their digits, so reading gives them back
    exactly; integers stay integers.

    Args:
        path: The file; its folder exists, itself it need not.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lines = _Lines(self.path)
        self._columns: list[str] = []

    def append(self, row: Mapping[str, float]) -> None:
        """Add one row and hand it to the operating system.

        Args:
            row: Metrics of one evaluation with the key ``round``.

        Raises:
            ValueError: If ``round`` is missing or the keys differ from the first row's.
            UserError: If the file cannot be written.
        """
        stored = self.columns()
        columns = stored or ["round", *(key for key in row if key != "round")]
        if set(columns) != set(row):
            raise ValueError(f"{self.path} has the columns {columns}, got a row with {list(row)}.")
        header = "" if stored else _csv_line(columns)
        self.lines.append(header + _csv_line([_cell(row[column]) for column in columns]))

    def rows(self, start: int = 0) -> list[dict[str, float]]:
        """Return the rows from one on, of which the first is 0; a torn last line is left out.

        Raises:
            UserError: If the header or a complete line is damaged.
        """
        columns = self.columns()
        lines = itertools.islice(enumerate(self.lines, 1), 1 + start, None)
        return [self._parse(columns, number, line) for number, line in lines]

    def columns(self) -> list[str]:
        """Return the columns by their current names, the first is ``round``; none before the first row.

        Raises:
            UserError: If the header is damaged.
        """
        if not self.lines.grows or not self._columns:
            self._columns = [current_name(name) for name in self._cells(1, next(iter(self.lines), b""))]
        return list(self._columns)

    def _parse(self, columns: list[str], number: int, line: bytes) -> dict[str, float]:
        with suppress(ValueError, KeyError):
            cells = self._cells(number, line)
            row = {name: _number(cell) for name, cell in zip(columns, cells, strict=True)}
            if isinstance(row["round"], int):
                return row
        raise self._damaged(number)

    def _cells(self, number: int, line: bytes) -> list[str]:
        try:
            return next(csv.reader([line.decode()]), [])
        except (ValueError, csv.Error):
            raise self._damaged(number) from None

    def _damaged(self, number: int) -> UserError:
        return UserError(
            f"{self.path} must hold a header with `round` and rows of as many numbers, "
            f"line {number} is damaged."
        )


def write_summary(path: str | Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json`` whole, indented for reading.

    Raises:
        UserError: If the file cannot be written.
    """
    write_atomic(path, _dump({"format": SUMMARY_FORMAT, **summary}, indent=2) + "\n")


def _dump(
    row: Mapping[str, Any], *, indent: int | None = None, separators: tuple[str, str] | None = None
) -> str:
    return json.dumps(row, indent=indent, separators=separators, default=_plain)


def _plain(value: Any) -> Any:
    # NumPy arrays and scalars and torch tensors all offer tolist().
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON.")


def _csv_line(cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(value: Any) -> str:
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))


def _number(cell: str) -> float:
    try:
        return int(cell)
    except ValueError:
        return float(cell)
