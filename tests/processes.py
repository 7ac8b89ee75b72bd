"""Processes of Ray as tests see them, and a selector whose process dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PLUGIN = '''
"""A selector whose process dies as often as it is told."""

import os
from pathlib import Path

from flsel.selector import Plan, Selector, View


class Fragile(Selector):
    def __init__(self, deaths: int = 0) -> None:
        self.deaths = deaths

    def select(self, view: View) -> Plan:
        marks = [Path(f"death-{self.deaths}-{n}") for n in range(self.deaths)]
        left = [mark for mark in marks if not mark.exists()]
        if view.round == 3 and left:
            left[0].touch()
            os._exit(1)
        return Plan.star(view.available.nonzero().squeeze(1)[: view.clients_per_round].tolist())
'''


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 500
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def family(pid: int) -> list[int]:
    """A process's descendants: a sweep's driver, and all of its Ray cluster."""
    told = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(word) for words in told for word in words]
    return [member for child in children for member in (child, *family(child))]


def words_of(pid: int) -> str:
    """A process's command line; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
