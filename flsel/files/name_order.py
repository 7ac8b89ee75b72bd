"""The order of names that hold numbers."""

from __future__ import annotations

import re


def name_order(name: str) -> list[tuple[bool, int, str]]:
    """Sort names as people count: runs of digits in them by their numbers, before other characters."""
    return [
        (not part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]
