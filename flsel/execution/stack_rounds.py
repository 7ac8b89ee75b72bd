"""Records the round that all runs of a stack last checkpointed, so that a resume is exact.

The last bits of a model depend on how many models it is stacked with, and on their numbers of steps. All
runs of a stack are therefore checkpointed in the same rounds, and then these rounds are recorded. After a
kill, the runs that are ahead of the record go back by one checkpoint, and all resume together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flsel.execution.job import Job
from flsel.files import write_atomic
from flsel.runner.checkpoint import go_back

_FILE = ".together.json"


class StackRounds:
    """The record of a stack.

    Args:
        folder: A folder that holds the folders of all runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / _FILE

    def begun(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs of a stack that was stopped, each back at the round that all of them had saved.

        Args:
            jobs: All jobs. One that failed or diverged since then does so again.

        Returns:
            Nothing where no stack was stopped, or one of its jobs was executed alone since then.
        """
        rounds = self._read()
        known = [job for job in jobs if self._name(job.folder) in rounds]
        if len(known) < len(rounds) or any(job.outcome.status == "complete" for job in known):
            return []
        there = [go_back(job.folder, rounds[self._name(job.folder)]) for job in known]
        return known if all(there) else []

    def keep(self, rounds: Mapping[Path, int]) -> None:
        """Record the rounds of the runs' checkpoints, by folder."""
        plain = {self._name(folder): round for folder, round in rounds.items()}
        write_atomic(self._file, json.dumps(plain) + "\n")

    def clear(self) -> None:
        """Forget a stack that has ended."""
        self._file.unlink(missing_ok=True)

    def _name(self, folder: Path) -> str:
        return str(folder.relative_to(self._folder))

    def _read(self) -> dict[str, int]:
        # Without a record runs resume all the same, stacked with whichever others are left.
        with suppress(OSError, ValueError, RecursionError):
            plain = json.loads(self._file.read_text(encoding="utf-8"))
            if isinstance(plain, dict) and all(type(round) is int for round in plain.values()):
                return plain
        return {}
