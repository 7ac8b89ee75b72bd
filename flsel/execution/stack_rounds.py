"""Records which runs share a stack and the round that all of them last checkpointed: a resume is then exact.

The last bits of a model depend on how many models it is stacked with, and on their numbers of steps. All
runs of a stack are therefore checkpointed in the same rounds, and then these rounds are recorded. After a
kill, the runs that are ahead of the record go back by one checkpoint, and all resume together.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flsel.execution.job import Job
from flsel.files import make_folder, write_atomic
from flsel.runner.checkpoint import go_back

_FOLDER = ".together"


class StackRounds:
    """The record of a stack: a file below a folder that holds the folders of all runs. One run needs none.

    Args:
        folder: That folder.
        runs: Folders of the stack's runs.
    """

    def __init__(self, folder: Path, runs: Sequence[Path]) -> None:
        self._folder = folder
        self._names = [_name(run, folder) for run in runs]
        named = hashlib.sha256("\n".join(self._names).encode()).hexdigest()[:16]
        self._file = folder / _FOLDER / f"{named}.json"
        self._replaces = True

    def plan(self) -> None:
        """Record a stack that no run of which has begun, so that a resume does not cut it otherwise."""
        self.keep(dict.fromkeys([self._folder / name for name in self._names], 0))

    def keep(self, rounds: Mapping[Path, int]) -> None:
        """Record the rounds of the runs' checkpoints, by folder; those of runs that ended are not there."""
        if len(self._names) < 2:
            return
        make_folder(self._file.parent)
        plain = {_name(run, self._folder): round for run, round in rounds.items()}
        write_atomic(self._file, json.dumps(plain) + "\n")
        if self._replaces:
            for file, others in _records(self._folder):
                if file != self._file and not others.keys().isdisjoint(self._names):
                    file.unlink(missing_ok=True)
        self._replaces = False

    def clear(self) -> None:
        """Forget a stack that has ended."""
        self._file.unlink(missing_ok=True)


def begun(folder: Path, jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the stacks that were stopped or planned, each run back at the round that all had saved.

    Args:
        folder: A folder that holds the folders of all runs.
        jobs: The jobs to execute. One that failed since then does so again.

    Returns:
        The jobs of each. A stack with a job that is not to be executed is left out, and one with a job that
        was executed alone since then.
    """
    named = {_name(job.folder, folder): job for job in jobs}
    places = {name: place for place, name in enumerate(named)}
    found, taken = list[list[Job]](), set[str]()
    stopped = [rounds for _, rounds in _records(folder) if rounds and rounds.keys() <= named.keys()]
    # One that was stopped is newer than a plan of which it was cut.
    for rounds in sorted(stopped, key=lambda each: (not any(each.values()), places[next(iter(each))])):
        if taken.isdisjoint(rounds) and all([go_back(named[n].folder, at) for n, at in rounds.items()]):
            found.append([named[name] for name in rounds])
            taken |= rounds.keys()
    return found


def forget(folder: Path) -> None:
    """Remove all records, once no job is left."""
    shutil.rmtree(folder / _FOLDER, ignore_errors=True)


def _records(folder: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    for file in sorted((folder / _FOLDER).glob("*.json")):
        # Without a record runs resume all the same, stacked with whichever others are left.
        with suppress(OSError, ValueError, RecursionError):
            plain = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(plain, dict) and all(type(round) is int for round in plain.values()):
                yield file, plain


def _name(run: Path, folder: Path) -> str:
    return str(run.relative_to(folder))
