"""A run's own account, which every report reads: ``rounds.jsonl``, ``metrics.csv``, ``summary.json``.

Trackers are sinks; these files are the source of truth. They grow by whole lines,
so a killed run loses at most the line it was writing, and a resumed run first drops what it will play again.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO

from flsel.errors import UserError
from flsel.files import naming, write_atomic

_PACKAGES = ("flsel", "torch", "torchvision", "lightning", "torchmetrics", "numpy", "scipy")


class JsonLines:
    """An append-only file of one JSON object a line, each with the key ``round``.

    Numbers are stored with all their digits; non-finite ones as ``NaN`` and ``Infinity``. NumPy values and
    tensors become numbers and lists.

    Args:
        path: The file; its folder exists, itself it need not.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one object and hand it to the operating system.

        Args:
            row: The object; ``row["round"]`` is an integer.

        Raises:
            UserError: If the file cannot be written.
        """
        _append(self.path, _dump(row, separators=(",", ":")) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return all objects; a torn last line is left out.

        Raises:
            UserError: If a complete line is not a JSON object.
        """
        return [self._parse(number, line) for number, line in enumerate(_lines(self.path), 1)]

    def truncate(self, after_round: int) -> None:
        """Drop every object whose ``round`` is ``after_round`` or later, and a torn last line.

        Raises:
            UserError: If a complete line is not a JSON object, or the file cannot be written.
        """

        def keep(number: int, line: bytes) -> bool:
            return bool(self._parse(number, line)["round"] < after_round)

        _rewrite(self.path, keep)

    def sync(self) -> None:
        """Make what was appended survive a power loss (before a checkpoint that relies on it)."""
        _sync(self.path)

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row: dict[str, Any] = json.loads(line)
            row["round"]
        except (ValueError, KeyError, TypeError):
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

    def append(self, row: Mapping[str, float]) -> None:
        """Add one row and hand it to the operating system.

        Args:
            row: Metrics of one evaluation with the key ``round``.

        Raises:
            ValueError: If ``round`` is missing or the keys differ from the first row's.
            UserError: If the file cannot be written.
        """
        stored = self._columns()
        columns = stored or ["round", *(key for key in row if key != "round")]
        if set(columns) != set(row):
            raise ValueError(f"{self.path} has the columns {columns}, got a row with {list(row)}.")
        header = "" if stored else _csv_line(columns)
        _append(self.path, header + _csv_line([_cell(row[column]) for column in columns]))

    def rows(self) -> list[dict[str, float]]:
        """Return all rows; a torn last line is left out.

        Raises:
            UserError: If a complete line does not fit the header.
        """
        columns = self._columns()
        return [
            self._parse(columns, number, line)
            for number, line in enumerate(_lines(self.path), 1)
            if number > 1
        ]

    def truncate(self, after_round: int) -> None:
        """Drop every row whose ``round`` is ``after_round`` or later, and a torn last line.

        Raises:
            UserError: If a complete line does not fit the header, or the file cannot be written.
        """
        columns = self._columns()

        def keep(number: int, line: bytes) -> bool:
            return number == 1 or self._parse(columns, number, line)["round"] < after_round

        _rewrite(self.path, keep)

    def sync(self) -> None:
        """Make what was appended survive a power loss (before a checkpoint that relies on it)."""
        _sync(self.path)

    def _columns(self) -> list[str]:
        header = next(_lines(self.path), b"")
        return next(csv.reader([header.decode()]), [])

    def _parse(self, columns: list[str], number: int, line: bytes) -> dict[str, float]:
        try:
            cells = next(csv.reader([line.decode()]), [])
            row = {name: _number(cell) for name, cell in zip(columns, cells, strict=True)}
            row["round"]
        except (ValueError, KeyError):
            raise UserError(
                f"{self.path} must hold a header with `round` and rows of as many numbers, "
                f"line {number} is damaged."
            ) from None
        return row


def write_summary(path: str | Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json`` whole, indented for reading.

    Raises:
        UserError: If the file cannot be written.
    """
    write_atomic(path, _dump(summary, indent=2) + "\n")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that a result depends on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Return the commit checked out in the current folder's repository, or None where there is none."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def device_name(device: str) -> str:
    """Return the hardware's name behind a torch device such as ``"cpu"`` or ``"cuda:0"``."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return _cpu_name() if device == "cpu" else device


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


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


def _lines(path: Path) -> Iterator[bytes]:
    if not path.exists():
        return
    with open(path, "rb") as stream:
        yield from (line for line in stream if line.endswith(b"\n"))


def _append(path: Path, text: str) -> None:
    with naming(path), open(path, "ab") as stream:
        stream.write(text.encode())


def _rewrite(path: Path, keep: Callable[[int, bytes], bool]) -> None:
    def fill(stream: BinaryIO) -> None:
        stream.writelines(line for number, line in enumerate(_lines(path), 1) if keep(number, line))

    if path.exists():
        write_atomic(path, fill)


def _sync(path: Path) -> None:
    if path.exists():
        with naming(path), open(path, "rb") as stream:
            os.fsync(stream.fileno())
