"""A selector's diagnostics in the run's folder, ``diagnostics.jsonl``: of few clients, at few rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from flsel.errors import UserError
from flsel.runner.run_log import JsonLines
from flsel.selector.diagnostic import Diagnostic, Kind, diagnostics_of

if TYPE_CHECKING:
    from flsel.selector import Selector

FILE = "diagnostics.jsonl"
MOST_CLIENTS = 100
"""Clients that are kept, evenly spaced by id."""
MOST_ROUNDS = 40
"""Rounds that are kept, evenly spaced."""


@dataclass(frozen=True)
class RecordedDiagnostic:
    """A diagnostic as a run's folder holds it.

    Attributes:
        words: What it is.
        kind: How it is drawn.
        unit: Its unit.
        clients: Ids of the n clients, int64 ``[n]``.
        rounds: Rounds that had been run, int64 ``[T]``; the last alone of ``pair`` and ``visit``.
        values: Float64 ``[T, n]`` (``client``, ``entropy``) or ``[n, m]`` (``pair``, ``visit``).
    """

    words: str
    kind: Kind
    unit: str
    clients: np.ndarray
    rounds: np.ndarray
    values: np.ndarray


class Recorder:
    """Writes diagnostics while a run is executed; a selector without any leaves no file.

    Args:
        file: Where they go.
        clients: N.
        rounds: Communication rounds of the whole run.
    """

    def __init__(self, file: JsonLines, clients: int, rounds: int) -> None:
        self._file = file
        self._clients = np.unique(np.linspace(0, clients - 1, min(clients, MOST_CLIENTS)).round().astype(int))
        self._every = math.ceil(rounds / MOST_ROUNDS)

    def after(self, selector: Selector, before: int, round: int) -> None:
        """Write what is kept over the rounds, where it is due.

        Args:
            selector: Whose diagnostics.
            before: Rounds that had been run before the step.
            round: Rounds that are run now.
        """
        if round // self._every > before // self._every:
            self._append([d for d in diagnostics_of(selector, self._clients) if d.over_rounds], round)

    def end(self, selector: Selector, round: int) -> None:
        """Write what is kept at the end."""
        self._append([d for d in diagnostics_of(selector, self._clients) if not d.over_rounds], round)

    def _append(self, diagnostics: Sequence[Diagnostic], round: int) -> None:
        for d in diagnostics:
            self._file.append(
                {"round": round, "words": d.words, "kind": d.kind, "unit": d.unit,
                 "clients": self._clients, "values": _short(d.values)}
            )  # fmt: skip


def read_diagnostics(folder: Path) -> list[RecordedDiagnostic]:
    """Read the diagnostics of a run; none where its selector has none.

    Raises:
        UserError: If the file is damaged.
    """
    path = folder / FILE
    rows = JsonLines(path).rows() if path.is_file() else []
    found = []
    try:
        for words in dict.fromkeys(row["words"] for row in rows):
            same = [row for row in rows if row["words"] == words]
            kind, last = same[-1]["kind"], same[-1]
            if kind not in get_args(Kind):
                raise ValueError(kind)
            over = kind in ("client", "entropy")
            kept = [row["round"] for row in same] if over else [last["round"]]
            values = np.array([row["values"] for row in same] if over else last["values"], dtype=np.float64)
            clients, rounds = (np.array(ids, dtype=np.int64) for ids in (last["clients"], kept))
            if values.ndim != 2 or values.shape[over] != len(clients):
                raise ValueError(values.shape)
            found.append(RecordedDiagnostic(str(words), kind, str(last["unit"]), clients, rounds, values))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(f"{path} is damaged: a line lacks what a diagnostic has; remove the file.") from None
    return found


def _short(values: np.ndarray) -> np.ndarray:
    """Round to five significant digits, which is more than a picture shows."""
    known = np.asarray(values, dtype=np.float64)
    rounded = np.array([float(f"{value:.5g}") for value in known.ravel()])
    return rounded.reshape(known.shape)
