"""Where runs that are played beside each other stand, so that a kill leaves no trace in their bits.

The last bits of a model depend on how many models it is stacked with, and on their numbers of steps. All
runs of a stack are therefore saved in the same rounds, and once all are, their rounds are written down. Those
that a kill left ahead of that go back by one checkpoint, and all go on together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flsel.comparison.reading import Run
from flsel.files import write_atomic
from flsel.runner.checkpoint import go_back

_FILE = ".together.json"


class Standing:
    """The stack of a comparison that is being played.

    Args:
        folder: The comparison's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / _FILE

    def begun(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs of a stack that was stopped, each back at the round that all of them had saved.

        Args:
            runs: All of the comparison. One that failed or diverged since then does so again.

        Returns:
            Nothing where no stack was stopped, or somebody played one of them alone since then.
        """
        rounds = self._read()
        found = [run for run in runs if str(run.folder.relative_to(self._folder)) in rounds]
        if len(found) < len(rounds) or any(run.status == "complete" for run in found):
            return []
        there = [go_back(r.folder, rounds[str(r.folder.relative_to(self._folder))]) for r in found]
        return found if all(there) else []

    def keep(self, rounds: Mapping[Path, int]) -> None:
        """Write down the rounds that runs are saved at, by folder."""
        plain = {str(folder.relative_to(self._folder)): round for folder, round in rounds.items()}
        write_atomic(self._file, json.dumps(plain) + "\n")

    def clear(self) -> None:
        """Forget a stack that has been played."""
        self._file.unlink(missing_ok=True)

    def _read(self) -> dict[str, int]:
        # Without it runs go on all the same, beside whichever others are left.
        with suppress(OSError, ValueError, RecursionError):
            plain = json.loads(self._file.read_text(encoding="utf-8"))
            if isinstance(plain, dict) and all(type(round) is int for round in plain.values()):
                return plain
        return {}
