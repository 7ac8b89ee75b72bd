"""Read files that people bring: no devices or pipes, and no JSON key twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from flsel.errors import UserError, short
from flsel.files.folders import home
from flsel.files.writing import check_regular


def user_bytes(key: str, path: str, kind: str) -> bytes:
    """Return what a file holds that a setting names.

    Args:
        key: The setting, for messages.
        path: The file; ``~`` is the home folder.
        kind: What it should be, such as "a CSV file".

    Raises:
        UserError: If there is no such file, or it cannot be read.
    """
    file = home(path)
    check_regular(file)
    try:
        return file.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"{key} must name {kind} that can be read, got {path}: {reason}.") from error


def parse_json(raw: bytes) -> Any:
    """Return what JSON text holds, of any Unicode encoding.

    Raises:
        ValueError: If it is no JSON, is nested too deeply, or has a key twice.
    """
    try:
        return json.loads(raw, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {short(twice, 60)} stands twice")
    return found
