"""The trials of a sweep as Ray's workload: a failure in following them is logged once and stops nothing."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest
from jobs import job
from lightning.pytorch.loggers import CSVLogger
from spaces import config_of
from wandb_reader import read_run

from flsel.config.groups import TrackConfig
from flsel.runner.trackers.tracker import Tracker
from flsel_tune.space_file import make_space
from flsel_tune.study import Study
from flsel_tune.sweep_config import SweepConfig
from flsel_tune.workload import SweepWorkload
from flsel_tune.write_results import mean_rows

SPACE = {"selector": {"type": "choice", "values": ["Uniform", "PowD"]}}


class Seen:
    """A console that remembers what it was told, or fails."""

    def __init__(self, error=None):
        self.told = []
        self.error = error

    def reported(self, *given):
        self.told.append(("reported", *given))
        if self.error:
            raise self.error

    def ended(self, *given):
        self.told.append(("ended", *given))
        if self.error:
            raise self.error


@pytest.fixture
def study(tmp_path):
    common = job(tmp_path)
    made = Study(tmp_path, "s", metrics=common.metrics, config=SweepConfig(), rounds=6, seed=0)
    made.ask(make_space(SPACE, config_of("Uniform")))
    return made


def report(at=2, **changes):
    rows = [
        [{"round": at, "validation/accuracy": value, "client_train/loss_mean": loss, "test/loss": loss}]
        for value, loss in ((0.5, 1.0), (0.7, 3.0))
    ]
    return {
        "round": at, "objective": 0.6, "spread": 0.1, "seeds": [0.5, 0.7], "rows": rows, "finished": False,
        "seconds": 1.0, "status": "running", "error": "", "done": False, **changes,
    }  # fmt: skip


def watch(study, folder, console, track=None):
    plan = SimpleNamespace(
        job=job(folder),
        space=make_space(SPACE, config_of("Uniform")),
        sweep=SweepConfig(trials=1),
        config=SimpleNamespace(track=track or TrackConfig()),
    )
    return SweepWorkload(plan, study, console)


SETTINGS = {"selector": "PowD"}


def test_unfinished_trials_come_first_and_no_more_than_were_asked_for(study, tmp_path):
    workload = watch(study, tmp_path, Seen())
    assert workload.next() == study.unfinished()[0]
    assert workload.next() is None
    assert workload.name(0) == "trial 0"
    assert workload.folder(0) == tmp_path / "trials/0000"


def test_reports_and_ends_are_shown_and_written(study, tmp_path):
    console = Seen()
    watching = watch(study, tmp_path, console)
    watching.reported(0, SETTINGS, report())
    watching.ended(0, report(6, status="complete", finished=True), None)
    (reported, ended) = console.told
    assert reported == ("reported", 0, {"selector": "PowD"}, report())
    assert ended[:2] == ("ended", 0)
    assert ended[2]["status"] == "complete"
    assert ended[2]["round"] == 6
    assert json.loads((tmp_path / "trials.json").read_text())[0]["trial"] == 0


DIED = "its process died, perhaps out of memory (more often than `retries` allows)"


@pytest.mark.parametrize(
    ("last", "died", "status", "round", "error"),
    [
        (report(2), None, "pruned", 2, ""),
        (report(6, status="complete", finished=True), None, "complete", 6, ""),
        (report(4, status="diverged", error="gone"), None, "diverged", 4, "gone"),
        (report(4), DIED, "failed", 4, DIED),
        ({}, DIED, "failed", 0, DIED),
        ({}, None, "failed", 0, ""),
    ],
)
def test_how_a_trial_ended(study, tmp_path, last, died, status, round, error):
    console = Seen()
    watch(study, tmp_path, console).ended(0, last, died)
    ((_, _, found),) = console.told
    assert (found["status"], found["round"], found["error"]) == (status, round, error)
    (told,) = [trial.user_attrs["result"] for trial in study.trials()]
    assert (told["status"], told["died"]) == (status, died is not None)


def test_a_console_that_fails_is_said_once(study, tmp_path, caplog):
    watching = watch(study, tmp_path, Seen(ValueError("no\nroom")))
    with caplog.at_level(logging.WARNING, "flsel"):
        for at in (2, 4):
            watching.reported(0, SETTINGS, report(at))
        watching.ended(0, report(4), None)
    assert [record.getMessage() for record in caplog.records] == [
        "progress of the sweep failed, the sweep goes on: ValueError: no room"
    ]
    assert (tmp_path / "trials.csv").exists()


def test_files_and_trackers_that_fail_are_said_once_each(study, tmp_path, caplog, monkeypatch):
    def fail(*given, **named):
        raise OSError("disk full")

    monkeypatch.setattr("flsel_tune.workload.write_results", fail)
    monkeypatch.setattr("flsel_tune.workload.make_loggers", fail)
    console = Seen()
    watching = watch(study, tmp_path, console, TrackConfig(tracker="wandb", mode="offline"))
    with caplog.at_level(logging.WARNING, "flsel"):
        for at in (2, 4):
            watching.reported(0, SETTINGS, report(at))
            watching.ended(0, report(at), None)
        watching.close()
    assert [record.getMessage() for record in caplog.records] == [
        "tracking of the sweep failed, the sweep goes on: OSError: disk full",
        "writing of the sweep failed, the sweep goes on: OSError: disk full",
    ]
    assert len(console.told) == 4


def test_an_interrupt_is_not_swallowed(study, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        watch(study, tmp_path, Seen(KeyboardInterrupt())).reported(0, SETTINGS, report())


def test_a_trial_is_a_run_of_the_tracker(study, tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    watching = watch(study, tmp_path, Seen(), TrackConfig(tracker="wandb", mode="offline"))
    watching.reported(0, SETTINGS, report(2))
    watching.reported(0, SETTINGS, report(4, status="diverged", objective=float("nan"), rows=[[], []]))
    watching.ended(0, report(4, status="diverged", error="gone"), None)
    (path,) = tmp_path.glob("trials/0000/wandb/offline-run-*/*.wandb")
    run = read_run(path)
    assert (run.job_type, run.group, run.name) == ("trial", tmp_path.name, f"{tmp_path.name}-0000")
    assert {"PowD", "synthetic"} <= set(run.tags)
    assert run.config["selector"] == "PowD"
    assert (run.config["tune.trial"], run.config["tune.seeds"]) == (0, [3, 4])
    logged = {key: value for row in run.history for key, value in row.items() if not key.startswith("_")}
    assert logged["validation/accuracy"] == pytest.approx(0.6)
    assert logged["client_train/loss_mean"] == 2.0
    assert "test/loss" not in logged
    assert logged["tune/validation/accuracy"] == 0.6
    assert run.summary["tune/status"] == "diverged"


def test_other_trackers_are_told_a_trials_settings_and_its_result(study, tmp_path, monkeypatch):
    told, results = {}, {}
    monkeypatch.setattr(CSVLogger, "log_hyperparams", lambda self, given: told.update(given))
    monkeypatch.setattr(Tracker, "summary", lambda self, given: results.update(given))
    path = "lightning.pytorch.loggers.CSVLogger"
    watching = watch(study, tmp_path, Seen(), TrackConfig(tracker=path))
    watching.reported(0, SETTINGS, report(2))
    watching.ended(0, report(2), None)
    assert (told["selector"], told["dataset"], told["tune.trial"]) == ("PowD", "synthetic", 0)
    assert results == {"tune/validation/accuracy": 0.6, "tune/status": "pruned", "tune/error": ""}


def row(at, **values):
    return {"round": at, **values}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[]], []),
        ([[row(1, a=2.0)]], [row(1, a=2.0)]),
        ([[row(1, a=1.0), row(2, a=3.0)], [row(1, a=2.0), row(2, a=5.0)]], [row(1, a=1.5), row(2, a=4.0)]),
        ([[row(1, a=1.0, b=4.0)], [row(1, a=2.0)]], [row(1, a=1.5)]),
        ([[row(1, a=1.0), row(2, a=1.0)], [row(1, a=2.0)]], [row(1, a=1.5)]),
        ([[row(1, a=1.0)], []], []),
    ],
)
def test_rows_of_several_seeds_are_averaged(rows, expected):
    assert mean_rows(rows) == expected
