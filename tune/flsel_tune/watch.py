"""What the driver does when a trial reports: show it, track it, write it down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial as RayTrial

from flsel.config.groups import TrackConfig
from flsel.config.parser import parse_settings
from flsel.runner.trackers.loggers import make_loggers
from flsel.runner.trackers.tracker import Tracker
from flsel.runner.trackers.values import hyper_parameters
from flsel_tune.console import Console
from flsel_tune.results import mean_rows, write_results
from flsel_tune.searcher import outcome
from flsel_tune.study import Study
from flsel_tune.trial import SweepJob, cause_of_death

_LOG = logging.getLogger("flsel")


class Watch(Callback):
    """Follow the trials; a failure in here is said once and never stops the sweep.

    Whoever looks on is shown nothing of the test set, lest it choose the settings.

    Args:
        study: The sweep's study.
        job: What its trials have in common.
        console: Where progress is shown.
        track: Where trials are tracked; every trial becomes a run of its own.
    """

    def __init__(self, study: Study, job: SweepJob, console: Console, track: TrackConfig) -> None:
        self._study = study
        self._job = job
        self._console = console
        self._track = track
        self._trackers: dict[int, Tracker] = {}
        self._logged: dict[int, int] = {}
        self._values: dict[int, dict[str, float]] = {}
        self._alive = set[int]()
        self._silenced = set[str]()

    def __getstate__(self) -> dict[str, Any]:
        # Ray pickles its settings for a restore of its own, which is not used.
        return {}

    @property
    def running(self) -> int:
        """Number of trials that have a process."""
        return len(self._alive)

    def on_trial_start(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        """Count a trial that was given a process."""
        self._alive.add(trial.config["number"])

    def on_trial_result(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, result: dict[str, Any], **info: Any
    ) -> None:
        """Show and track a report."""
        number, settings = trial.config["number"], trial.config["settings"]
        self._safely("progress", lambda: self._console.reported(number, settings, result))
        self._safely("tracking", lambda: self._log(number, settings, result))

    def on_trial_complete(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        """Show and write down how a trial ended."""
        self._ended(trial, died=False)

    def on_trial_error(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        """Show and write down that a trial's process died for good."""
        self._ended(trial, died=True)

    def on_trial_recover(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        """Say that a trial's process died and that another one goes on."""
        _LOG.warning(
            "trial %d: its process died at round %d, out of memory perhaps; another one goes on from there",
            trial.config["number"], (trial.last_result or {}).get("round", 0),
        )  # fmt: skip

    def close(self) -> None:
        """Finish what is still tracked, as of trials that are to be resumed."""
        for tracker in self._trackers.values():
            tracker.close("aborted")
        self._trackers.clear()

    def _ended(self, trial: RayTrial, *, died: bool) -> None:
        self._alive.discard(trial.config["number"])
        self._safely("progress", lambda: self._console.ended(*self._found(trial, died)))
        self._safely("tracking", lambda: self._close(*self._found(trial, died)))
        self._safely("writing", lambda: write_results(self._study, self._job))

    def _found(self, trial: RayTrial, died: bool) -> tuple[int, dict[str, Any]]:
        number = trial.config["number"]
        why = cause_of_death(self._job.trial_folder(number)) if died else None
        return number, outcome(trial.last_result or {}, why)

    def _log(self, number: int, settings: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        if self._track.tracker == "none":
            return
        if number not in self._trackers:
            self._trackers[number] = self._open(number, settings)
        for row in mean_rows(result["rows"]):
            # A process that replaces a dead one reports from the beginning.
            if row["round"] > self._logged.get(number, -1):
                seen = {name: value for name, value in row.items() if not name.startswith("test/")}
                self._trackers[number].log(seen, int(row["round"]))
                self._logged[number] = int(row["round"])
        if result["status"] in ("running", "complete"):
            names = [self._job.objective(n) for n in range(len(self._job.metrics))]
            values = {f"tune/{m.text}": result[n] for m, n in zip(self._job.metrics, names, strict=True)}
            self._values[number] = values
            self._trackers[number].log({**values, "tune/spread": result["spread"]}, result["round"])

    def _open(self, number: int, chosen: Mapping[str, Any]) -> Tracker:
        described = self._job.run_config(chosen, self._job.seeds[0])
        config = parse_settings(described)
        sweep = Path(self._job.folder).name
        folder = self._job.trial_folder(number)
        folder.mkdir(parents=True, exist_ok=True)
        settings = {**described, "tune": {"trial": number, "seeds": list(self._job.seeds)}}
        loggers = make_loggers(
            replace(self._track, group=self._track.group or sweep),
            run_dir=folder,
            name=f"{sweep}-{number:04d}",
            resolved_config=settings,
            tags=(type(config.selector).__name__, config.data.name),
            job_type="trial",
        )
        return Tracker(loggers, hyper_parameters(settings))

    def _close(self, number: int, found: Mapping[str, Any]) -> None:
        tracker = self._trackers.pop(number, None)
        if tracker is not None:
            values = self._values.pop(number, {})  # TensorBoard shows settings beside results only
            tracker.summary({**values, "tune/status": found["status"], "tune/error": found["error"]})
            tracker.close("success" if found["status"] in ("complete", "pruned") else "failed")

    def _safely(self, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            if what not in self._silenced:
                self._silenced.add(what)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                _LOG.warning("%s of the sweep failed, the sweep goes on: %s", what, reason)
