"""The driver's side of Ray Tune: which job is next, which is stopped, which is retried after a death."""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from ray.exceptions import RayActorError, RayTaskError
from ray.tune import Callback
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from flsel.errors import short
from flsel.execution.on_ray.deaths import cause_of_death

_LOG = logging.getLogger("flsel")
_DOUBT_SECONDS = 60.0
# A daemon that loses its agent ends its workers a tenth of a second before itself, and then answers no more.
_DAEMON_SECONDS = 5.0

Plain = dict[str, Any]
Report = dict[str, Any]


class Workload(Protocol):
    """Jobs for Ray, numbered, as the driver sees them."""

    def next(self) -> tuple[int, Plain] | None:
        """Return the number and the settings of another job; None if there is none for now."""

    def name(self, number: int) -> str:
        """Return what messages call a job."""

    def folder(self, number: int) -> Path:
        """Return a job's folder."""

    def stops(self, number: int, report: Report) -> bool:
        """Tell whether a job that reports, and has not ended, is stopped."""

    def reported(self, number: int, settings: Plain, report: Report) -> None:
        """Take note of a report."""

    def again(self, number: int, settings: Plain, *, smaller: bool) -> list[tuple[int, Plain]]:
        """Return what is handed out again of a job whose process died.

        Args:
            number: Its number.
            settings: Its settings.
            smaller: Whether it is cut into several jobs; nothing is returned if it cannot be.
        """

    def ended(self, number: int, report: Report, died: str | None) -> None:
        """Take note of a job that ended.

        Args:
            number: Its number.
            report: Its last report; empty if there is none.
            died: Why its processes died, if they did more often than retries allow.
        """


class Dispatcher(Searcher):
    """Hand jobs to Ray Tune, and hand a job out again, ``retries`` times, after its process died.

    Ray itself retries nothing: it takes the death of an idle process for the failure of the job that it was
    about to be given.

    Args:
        workload: The jobs.
        retries: How often a job is handed out again.
    """

    def __init__(self, workload: Workload, retries: int) -> None:
        super().__init__()
        self.workload = workload
        self._retries = retries
        self._again: list[tuple[int, Plain]] = []
        self._out: dict[str, tuple[int, Plain]] = {}
        self._started = set[str]()
        self._last: dict[int, Report] = {}
        self._deaths = Counter[int]()
        self._raised: dict[int, str] = {}
        self._dead: list[tuple[float, int, Report]] = []

    def __getstate__(self) -> dict[str, Any]:
        # Ray pickles it for a restore of its own, which is not used.
        return {}

    @property
    def running(self) -> int:
        """Number of jobs that have a process."""
        return len(self._started & self._out.keys())

    def suggest(self, trial_id: str) -> Plain | None:
        """Return a job's number and settings, None to wait for one that may be retried, or the end."""
        asked = self._again.pop(0) if self._again else self.workload.next()
        if asked is None:
            return None if self._out else self.FINISHED  # type: ignore[return-value]
        self._out[trial_id] = asked
        return {"number": asked[0], "settings": asked[1]}

    def started(self, trial_id: str) -> None:
        """Count a job that was given a process."""
        self._started.add(trial_id)

    def raised(self, trial_id: str, error: Exception | None) -> None:
        """Keep what a job's process raised, where it did not just die."""
        number, _ = self._out[trial_id]
        self._raised.pop(number, None)
        if isinstance(error, RayTaskError):
            self._raised[number] = f"{type(error.cause).__name__}: {short(error.cause).rstrip('.')}"
        elif isinstance(error, RayActorError) and error.actor_init_failed:  # a module that is not there, say
            self._raised[number] = short(str(error).strip().splitlines()[-1]).rstrip(".")

    def on_trial_result(self, trial_id: str, result: Report) -> None:
        """Keep the report, which Ray forgets of a process that dies."""
        self._last[self._out[trial_id][0]] = result
        self.end_dead_jobs(died_before=monotonic() - _DOUBT_SECONDS)

    def on_trial_complete(self, trial_id: str, result: Report | None = None, error: bool = False) -> None:
        """Note how a job ended, or hand it out again."""
        number, settings = self._out.pop(trial_id)
        if not error:
            self.workload.ended(number, result or self._last.pop(number, {}), None)
            return
        self._deaths[number] += 1
        last, smaller = self._last.get(number, {}), self._deaths[number] > self._retries
        name, at, raised = self.workload.name(number), last.get("round", 0), self._raised.get(number)
        again = self.workload.again(number, settings, smaller=smaller)
        if not again:
            self._dead.append((monotonic(), number, last))
            return
        self._again += again
        how = f"raised {raised}, at round {at}" if raised else f"died at round {at}, out of memory perhaps"
        goes_on = "its runs go on one by one" if smaller else "another one goes on from there"
        _LOG.warning("%s: its process %s; %s", name, how, goes_on)

    def restart(self) -> bool:
        """Hand out again what Ray Tune had when it gave up, cut into smaller jobs where that is possible.

        Returns:
            Whether one was.
        """
        cut = {job[0]: self.workload.again(*job, smaller=True) for job in self._out.values()}
        again = [cut[job[0]] or self.workload.again(*job, smaller=False) for job in self._out.values()]
        self._again = [*itertools.chain(*again), *self._again]
        self._out.clear()
        return any(cut.values())

    def finish(self) -> None:
        """End the jobs whose processes died, unless a dead daemon of Ray ends this process within seconds."""
        if self._dead:
            sleep(max(self._dead[-1][0] + _DAEMON_SECONDS - monotonic(), 0.0))
        self.end_dead_jobs()

    def end_dead_jobs(self, died_before: float = math.inf) -> None:
        """End jobs whose processes died more often than retries allow.

        Not at once: where Ray's daemon is what died, it takes the workers with it first and this process soon
        after. The jobs then stay unfinished, so that a resume runs them, because the fault was not theirs.

        Args:
            died_before: Those that died before this time of the monotonic clock.
        """
        for entry in [entry for entry in self._dead if entry[0] < died_before]:
            self._dead.remove(entry)
            _, number, last = entry
            cause = cause_of_death(self.workload.folder(number), self._raised.get(number))
            self.workload.ended(number, last, cause)

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing but the file that Ray renames: jobs are resumed from their folders."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing, as nothing is kept."""


class Stopper(FIFOScheduler):
    """Stop the jobs that the workload gives up, and hand on what others raised."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dispatcher = dispatcher

    def __getstate__(self) -> dict[str, Any]:
        # As for the Dispatcher.
        return {}

    def on_trial_result(self, tune_controller: Any, trial: RayTrial, result: Mapping[str, Any]) -> str:
        """Decide whether a job continues."""
        stop = self._dispatcher.workload.stops(trial.config["number"], dict(result))
        return FIFOScheduler.STOP if stop else FIFOScheduler.CONTINUE

    def on_trial_error(self, tune_controller: Any, trial: RayTrial) -> None:
        """Hand on what a job's process raised, of which Ray does not tell the searcher."""
        self._dispatcher.raised(trial.trial_id, trial.get_pickled_error())


class Reports(Callback):
    """Hand on what Ray Tune tells its callbacks alone: starts, and all reports."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def __getstate__(self) -> dict[str, Any]:
        # As for the Dispatcher.
        return {}

    def on_trial_start(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        """Hand on that a job was given a process."""
        self._dispatcher.started(trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, result: Report, **info: Any
    ) -> None:
        """Hand on a report."""
        self._dispatcher.workload.reported(trial.config["number"], trial.config["settings"], result)
