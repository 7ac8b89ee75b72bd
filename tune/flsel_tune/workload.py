"""The trials of a sweep as Ray's workload: suggested, stopped early, shown, tracked, written down."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from flsel.config import RunConfig
from flsel.metrics import ON_TEST
from flsel.runner.trackers.loggers import make_loggers
from flsel.runner.trackers.tracker import Tracker
from flsel.runner.trackers.values import hyper_parameters
from flsel_tune.space import Settings
from flsel_tune.study import Study
from flsel_tune.sweep_display import Console
from flsel_tune.sweep_plan import SweepPlan
from flsel_tune.trial import Report
from flsel_tune.write_results import mean_rows, write_results

_LOG = logging.getLogger("flsel")


class SweepWorkload:
    """The trials that are left (see :class:`flsel.execution.on_ray.dispatcher.Workload`).

    First come the trials that an earlier driver left unfinished, under their old numbers. A failure of the
    display, of a tracker or of a file is logged once. The sweep continues.

    Test results are shown nowhere, so that they cannot choose the settings.

    Args:
        plan: The sweep.
        study: Its trials.
        console: Where progress is shown.
    """

    def __init__(self, plan: SweepPlan, study: Study, console: Console) -> None:
        self._study, self._job, self._space = study, plan.job, plan.space
        self._console, self._track = console, plan.config.track
        self._left = study.left(plan.sweep.trials)
        self._unfinished = study.unfinished()
        self._trackers: dict[int, Tracker] = {}
        self._logged: dict[int, int] = {}
        self._values: dict[int, dict[str, float]] = {}
        self._silenced = set[str]()

    def next(self) -> tuple[int, Settings] | None:
        """Return the number and the settings of a trial, or that nothing is left to try."""
        if self._left == 0:
            return None
        self._left -= 1
        return self._unfinished.pop(0) if self._unfinished else self._study.ask(self._space)

    def name(self, number: int) -> str:
        """Return what messages call a trial."""
        return f"trial {number}"

    def folder(self, number: int) -> Path:
        """Return a trial's folder."""
        return self._job.trial_folder(number)

    def stops(self, number: int, report: Report) -> bool:
        """Tell whether the study's pruner gives a trial up, by communication round.

        The pruner decides from the values in the study's journal, so a resumed sweep decides as an
        uninterrupted one; Ray's schedulers lose their state with the driver.
        """
        if len(self._job.metrics) > 1 or report.get("status") not in ("running", "complete"):
            return False
        stop = self._study.report(number, report["round"], report[self._job.objective(0)])
        return stop and not report["finished"]

    def reported(self, number: int, settings: Settings, report: Report) -> None:
        """Show and track a report."""
        self._safely("progress", lambda: self._console.reported(number, settings, report))
        self._safely("tracking", lambda: self._log(number, settings, report))

    def again(self, number: int, settings: Settings, *, smaller: bool) -> list[tuple[int, Settings]]:
        """Return a trial as it is, since one is not cut."""
        return [] if smaller else [(number, settings)]

    def ended(self, number: int, report: Report, died: str | None) -> None:
        """Tell the study how a trial ended, show it and write it down."""
        found = outcome(report, died)
        state = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}.get(
            found["status"], TrialState.FAIL
        )
        values = [report.get(self._job.objective(n), math.nan) for n in range(len(self._job.metrics))]
        if state is TrialState.COMPLETE and len(values) == 1:
            self._study.report(number, found["round"], values[0])  # Ray does not pass on the last report
        self._study.tell(number, state, values, found)
        self._safely("progress", lambda: self._console.ended(number, found))
        self._safely("tracking", lambda: self._close(number, found))
        self._safely("writing", lambda: write_results(self._study, self._job))

    def close(self) -> None:
        """Finish what is still tracked, as of trials that are to be resumed."""
        for tracker in self._trackers.values():
            tracker.close("aborted")
        self._trackers.clear()

    def _log(self, number: int, settings: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        if self._track.tracker == "none":
            return
        if number not in self._trackers:
            self._trackers[number] = self._open(number, settings)
        for row in mean_rows(result["rows"]):
            # A process that replaces a dead one reports from the beginning.
            if row["round"] > self._logged.get(number, -1):
                seen = {name: value for name, value in row.items() if not name.startswith(ON_TEST)}
                self._trackers[number].log(seen, int(row["round"]))
                self._logged[number] = int(row["round"])
        if result["status"] in ("running", "complete"):
            names = [self._job.objective(n) for n in range(len(self._job.metrics))]
            values = {f"tune/{m.text}": result[n] for m, n in zip(self._job.metrics, names, strict=True)}
            self._values[number] = values
            self._trackers[number].log({**values, "tune/spread": result["spread"]}, result["round"])

    def _open(self, number: int, chosen: Mapping[str, Any]) -> Tracker:
        described = self._job.run_config(chosen, self._job.seeds[0])
        config = RunConfig.from_dict(described)
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


def outcome(report: Mapping[str, Any], died: str | None = None) -> dict[str, Any]:
    """Summarise a trial's last report.

    Args:
        report: The report; may be empty.
        died: Why its process died, if it did.

    Returns:
        ``status`` (complete, pruned, diverged, failed), ``error``, ``died`` (whether its process did),
        ``machine`` (whether the machine failed, such as by a full disk, and not the trial),
        ``round``, ``spread``, ``seeds`` and ``seconds``.
    """
    status = "failed" if died else report.get("status", "failed")
    return {
        "status": "pruned" if status == "running" else status,
        "error": died or report.get("error", ""),
        "died": died is not None,
        "machine": bool(report.get("machine")) and not died,
        "round": report.get("round", 0),
        "spread": report.get("spread"),
        "seeds": list(report.get("seeds", [])),
        "seconds": report.get("seconds", 0.0),
    }
