"""Ray Tune's side of a study: who is tried next, who is stopped, and what is told at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

from optuna.trial import TrialState
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search.optuna import OptunaSearch

from flsel_tune.cluster import daemon_lives
from flsel_tune.guard import die
from flsel_tune.space import Space
from flsel_tune.study import Study
from flsel_tune.trial import SweepJob, cause_of_death

_DOUBT_SECONDS = 60.0
# A daemon that loses its agent ends its workers first; Ray ends its driver some 15 seconds after the daemon.
_DAEMON_SECONDS = 25.0


class StudySearch(OptunaSearch):
    """Suggest settings from a study.

    Ray's own class tells Optuna that a stopped trial is complete and leaves one whose metric is not finite
    running for ever; this one tells what happened. It first hands out the trials that an earlier driver left
    unfinished, under their old numbers.

    Args:
        study: The study.
        space: What to search.
        job: What all trials have in common.
    """

    def __init__(self, study: Study, space: Space, job: SweepJob) -> None:
        metrics = [job.objective(n) for n in range(len(job.metrics))]
        modes: list[str] = [metric.mode for metric in job.metrics]
        self.study = study
        self._job = job
        self._dead: list[tuple[float, int, dict[str, Any]]] = []
        self._waiting = study.unfinished()
        self._numbers: dict[str, int] = {}
        self._last: dict[str, dict[str, Any]] = {}
        single = len(metrics) == 1
        super().__init__(
            space=space, metric=metrics[0] if single else metrics, mode=modes[0] if single else modes
        )
        self._names = metrics

    def _setup_study(self, mode: str | list[str]) -> None:
        self._ot_study: Any = self.study.study

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return the number and the settings of a trial, or that nothing is left to try."""
        asked = self._waiting.pop(0) if self._waiting else self.study.ask(cast(Space, self._space))
        if asked is None:
            return cast("dict[str, Any]", self.FINISHED)
        self._numbers[trial_id], settings = asked
        return {"number": asked[0], "settings": settings}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Keep the report, which Ray forgets of a process that dies."""
        self._last[trial_id] = result
        self.bury(died_before=monotonic() - _DOUBT_SECONDS)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell the study how a trial ended."""
        number = self._numbers[trial_id]
        last = self._last.pop(trial_id, {})
        result = result or last
        died = cause_of_death(self._job.trial_folder(number)) if error else None
        found = outcome(result, died)
        state = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}.get(
            found["status"], TrialState.FAIL
        )
        if died:
            self._dead.append((monotonic(), number, found))
            return
        values = [result.get(name, math.nan) for name in self._names]
        if state is TrialState.COMPLETE and len(values) == 1:
            self.study.report(number, found["round"], values[0])  # Ray asks nobody about the last report
        self.study.tell(number, state, values, found)

    def settle(self) -> None:
        """Mark what died once it is clear that Ray's daemon did not: its death ends this process too."""
        while self._dead and monotonic() - self._dead[-1][0] < _DAEMON_SECONDS:
            if not daemon_lives():
                die("Ray's daemon died")
            sleep(0.2)
        self.bury()

    def bury(self, died_before: float = math.inf) -> None:
        """Mark trials whose process died as failed.

        Not at once: where Ray's daemon is what died, it takes the workers with it first and this process soon
        after. The trials are then unfinished for whoever resumes the sweep, as the fault was not theirs.

        Args:
            died_before: Those that died before this time of the monotonic clock.
        """
        for entry in [entry for entry in self._dead if entry[0] < died_before]:
            self._dead.remove(entry)
            self.study.tell(entry[1], TrialState.FAIL, [], entry[2])

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing but the file that Ray renames: a sweep is resumed from the study's journal."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing, as nothing is kept."""


class StudyScheduler(FIFOScheduler):
    """Stop trials that the study's pruner gives up, by communication round.

    The pruner decides from the values in the study's journal, so a resumed sweep decides as an uninterrupted
    one; Ray's schedulers lose their state with the driver.

    Args:
        study: The study.
        metric: Name of the metric's value in the reports, or None with several metrics: nobody is stopped.
    """

    def __init__(self, study: Study, metric: str | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._study = study
        self._judged = metric  # Ray's own classes have a `_metric`, and look for it in every report

    def on_trial_result(self, tune_controller: Any, trial: RayTrial, result: dict[str, Any]) -> str:
        """Note a report and decide whether the trial goes on."""
        if self._judged is None or result.get("status") not in ("running", "complete"):
            return FIFOScheduler.CONTINUE
        stop = self._study.report(trial.config["number"], result["round"], result[self._judged])
        return FIFOScheduler.STOP if stop and not result["finished"] else FIFOScheduler.CONTINUE


def outcome(result: Mapping[str, Any], died: str | None = None) -> dict[str, Any]:
    """Summarise a trial's last report.

    Args:
        result: The report; may be empty.
        died: Why its process died, if it did.

    Returns:
        ``status`` (complete, pruned, diverged, failed), ``error``, ``died`` (whether its process did),
        ``machine`` (whether the machine failed, such as by a full disk, and not the trial),
        ``round``, ``spread``, ``seeds`` and ``seconds``.
    """
    status = "failed" if died else result.get("status", "failed")
    return {
        "status": "pruned" if status == "running" else status,
        "error": died or result.get("error", ""),
        "died": died is not None,
        "machine": bool(result.get("machine")) and not died,
        "round": result.get("round", 0),
        "spread": result.get("spread"),
        "seeds": list(result.get("seeds", [])),
        "seconds": result.get("seconds", 0.0),
    }
