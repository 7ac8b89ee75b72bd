"""Read what a node sent: arrays and plain values, each by its declared type, size and range.

Nothing is unpickled, and nothing is allocated before its size is known to be right. What differs from its
declaration is :class:`Malformed`: it costs the client that sent it its round, and no other client anything.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from flsel.arguments import shown
from flsel.errors import UserError, short

K = TypeVar("K")
_MOST_HEADER = 10_000  # Bytes that NumPy reads as the header of an array.
_MOST_DIMENSIONS = 32
_FORMAT = "an array in NumPy's format"
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Malformed(UserError):
    """An answer that is not what was asked for."""


class Field(NamedTuple):
    """What a plain value must be.

    Attributes:
        rule: In words, after "must be".
        fits: Tells whether a value is that.
    """

    rule: str
    fits: Callable[[Any], bool]


def number(least: float = -math.inf, most: float = math.inf, *, missing: bool = False) -> Field:
    """Declare a finite number in [least, most]; with ``missing``, NaN says that there is none."""

    def fits(found: Any) -> bool:
        value = _float(found)
        return (math.isfinite(value) and least <= value <= most) or (
            missing and isinstance(found, float) and math.isnan(found)
        )

    inside = f" in [{least:g}, {most:g}]" if (least, most) != (-math.inf, math.inf) else ""
    return Field(f"a finite number{inside}", fits)


def whole_number(least: int, most: int) -> Field:
    """Declare a whole number in [least, most]."""
    return Field(f"a whole number in [{least}, {most:g}]", lambda found: _is_whole(found, least, most))


def text(most: int, least: int = 1) -> Field:
    """Declare printable text of ``least`` to ``most`` characters."""
    return Field(
        f"{least} to {most} printable characters",
        lambda found: isinstance(found, str) and least <= len(found) <= most and found.isprintable(),
    )


def counts(entries: int, most: int) -> Field:
    """Declare at most so many whole numbers >= 0 whose sum is at most ``most``."""

    def fits(found: Any) -> bool:
        return (
            isinstance(found, list)
            and len(found) <= entries
            and all(_is_whole(count, 0, most) for count in found)
            and sum(found) <= most
        )

    return Field(f"at most {entries:g} whole numbers >= 0 of sum <= {most:g}", fits)


def names_among(known: Collection[str]) -> Field:
    """Declare distinct names, at least one, out of known ones."""

    def fits(found: Any) -> bool:
        if not isinstance(found, list) or not 0 < len(found) <= len(known):
            return False
        return all(isinstance(name, str) and name in known for name in found) and len(set(found)) == len(
            found
        )

    return Field("names of the model's arrays of real numbers", fits)


def read(
    values: Mapping[str, Any], declared: Mapping[str, Field], required: Collection[str] = ()
) -> dict[str, Any]:
    """Return the declared values of an answer, without the others.

    Args:
        values: What came.
        declared: The fields by name.
        required: Names that must be there.

    Raises:
        Malformed: If a value is not what was declared, or is missing.
    """
    for name in required:
        if name not in values:
            raise Malformed(f"{name} of an answer must be {declared[name].rule}, got nothing.")
    found = {name: values[name] for name in declared if name in values}
    for name, value in found.items():
        if not declared[name].fits(value):
            raise Malformed(f"{name} of an answer must be {declared[name].rule}, got {told(value)}.")
    return found


def finite_numbers(values: Mapping[K, Any]) -> dict[K, float]:
    """Return those of an answer's values that are finite numbers."""
    found = {name: _float(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def npy(data: bytes) -> np.ndarray:
    """Return the array that bytes in NumPy's format hold: a view of them, so that nothing is allocated.

    Raises:
        Malformed: If they are something else, or the array has other entries than truth values, whole
            numbers and real numbers of at most 64 bits.
    """
    file = io.BytesIO(data[: _MOST_HEADER + 16])
    try:
        shape, fortran, dtype = _READERS[np.lib.format.read_magic(file)](file)
    except Exception:  # The header is a literal of Python's: whatever its reader raises, it is none.
        raise Malformed(f"each array must be {_FORMAT}, got {len(data):,} bytes.") from None
    if not is_plain(dtype):
        raise Malformed(_OTHER_TYPE.format(short(dtype, 60)))
    if len(shape) > _MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise Malformed(f"each array must be {_FORMAT}, got the shape {told(list(shape))}.")
    held = len(data) - file.tell()
    if math.prod(shape) * dtype.itemsize != held:
        raise Malformed(
            f"each array must be {_FORMAT}, got {held:,} bytes for the shape "
            f"{short(list(shape), 60)} of {dtype}."
        )
    try:
        if not held:
            return np.empty(shape, dtype)
        if dtype.kind == "b" and np.frombuffer(data, np.uint8, offset=file.tell()).max() > 1:
            raise Malformed(f"each array of truth values must hold the bytes 0 and 1, got {told(data[-8:])}.")
        return np.ndarray(shape, dtype, buffer=data, offset=file.tell(), order="F" if fortran else "C")
    except (TypeError, ValueError):  # Sizes beside a zero that no array can have, or truth values as sizes.
        raise Malformed(f"each array must be {_FORMAT}, got the shape {told(list(shape))}.") from None


_OTHER_TYPE = (
    "each array must have truth values, whole numbers or real numbers of at most 64 bits, in "
    "this machine's byte order, got {}."
)


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Tell whether an array of a type is one of plain numbers."""
    return dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.isnative


def _is_whole(found: Any, least: int, most: int) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and least <= found <= most


def _float(found: Any) -> float:
    """Return a number as a float, NaN if it is none or too large."""
    try:
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else math.nan
    except OverflowError:
        return math.nan


def told(value: Any) -> str:
    """Write a value of a message, cut before it is turned into text."""
    if isinstance(value, list):
        return short([told(entry) for entry in value[:8]], 80).replace("'", "") + (
            f" and {len(value) - 8:,} more" if len(value) > 8 else ""
        )
    if isinstance(value, str | bytes):
        return short(repr(value[:60]), 60) + (f" ({len(value):,} characters)" if len(value) > 60 else "")
    return short(shown(value), 60)
