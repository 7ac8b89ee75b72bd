"""The driver's side of Ray Tune: retries, deaths that are doubted, fewer jobs where memory is short."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError

from flsel.errors import UserError
from flsel.execution.executor import Resources
from flsel.execution.on_ray import dispatcher, tune_loop
from flsel.execution.on_ray.cluster_cleanup import resume_by
from flsel.execution.on_ray.dispatcher import Dispatcher


class Jobs:
    """A workload of some jobs that notes how they end."""

    def __init__(self, folder: Path, count: int = 4) -> None:
        self._folder, self._left = folder, list(range(count))
        self.ends: dict[int, str | None] = {}

    def next(self) -> tuple[int, dict[str, Any]] | None:
        return (self._left.pop(0), {}) if self._left else None

    def name(self, number: int) -> str:
        return f"job {number}"

    def folder(self, number: int) -> Path:
        return self._folder / str(number)

    def stops(self, number: int, report: dict[str, Any]) -> bool:
        return False

    def reported(self, number: int, settings: dict[str, Any], report: dict[str, Any]) -> None:
        pass

    def again(
        self, number: int, settings: dict[str, Any], *, smaller: bool
    ) -> list[tuple[int, dict[str, Any]]]:
        return [] if smaller else [(number, settings)]

    def ended(self, number: int, report: dict[str, Any], died: str | None) -> None:
        assert number not in self.ends
        self.ends[number] = died


def killed() -> RuntimeError:
    """The error that Ray's loop ends with when its memory monitor has killed a job's process."""
    error = RuntimeError("the loop failed")
    error.__cause__ = OutOfMemoryError("too much")
    return error


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Execute four jobs by tuners that start as many as they may and end as told; see the limits."""

    def run(errors, **resources):
        left = iter(errors)

        def tuner(dispatched, begin, packed, folder, allowed):
            def fit():
                most = allowed.max_concurrent
                run.limits.append(most)
                # Ray asks for one more than it has room for.
                asked = {f"{len(run.limits)}-{n}": None for n in range((most or 3) + 1)}
                asked = {name: dispatched.suggest(name) for name in asked}
                for name in [name for name, job in asked.items() if isinstance(job, dict)][: most or 3]:
                    dispatched.started(name)
                error = next(left, None)
                if error is not None:
                    raise error
                names = [name for name, job in asked.items() if isinstance(job, dict)]
                while names:
                    dispatched.on_trial_complete(names.pop(), {"round": 1})
                    name = f"{len(run.limits)}-{len(run.jobs.ends)}-more"
                    if isinstance(dispatched.suggest(name), dict):
                        names.append(name)

            return SimpleNamespace(fit=fit)

        monkeypatch.setattr(tune_loop, "_tuner", tuner)
        resume_by("continue with: flsel choose --resume s")
        tune_loop.execute_with_tune(run.jobs, None, None, tmp_path, Resources(**resources))  # type: ignore[arg-type]

    run.limits, run.jobs = [], Jobs(tmp_path)
    return run


def test_a_kill_for_memory_leaves_fewer_jobs_at_a_time(execute, caplog):
    with caplog.at_level(logging.WARNING, logger="flsel"):
        execute([killed(), killed()])
    assert execute.limits == [None, 2, 1]
    assert execute.jobs.ends == dict.fromkeys(range(4))
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory: the jobs go on with max_concurrent 2",
        "out of memory: the jobs go on with max_concurrent 1",
    ]


def test_too_little_memory_for_one_job_is_one_sentence(execute):
    with pytest.raises(UserError, match=r"too little memory for a single job.*flsel choose --resume s"):
        execute([killed()], max_concurrent=1)


def test_a_full_disk_is_one_sentence(execute):
    said = r"cannot be written: no space left on device\. Once that is mended, continue with: flsel choose"
    with pytest.raises(UserError, match=said):
        execute([OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])


@pytest.mark.parametrize("error", [RuntimeError("another"), ConnectionError("another")])
def test_other_errors_are_not_hidden(execute, error):
    with pytest.raises(type(error), match="another"):
        execute([error])
    assert execute.limits == [None]


def test_a_job_is_handed_out_again_whenever_its_process_died(tmp_path, caplog):
    """Also where it died before the job began: Ray Tune takes that for a failure of the job."""
    made = Dispatcher(Jobs(tmp_path, 2), retries=1)
    first, _ = made.suggest("a"), made.suggest("b")
    assert made.suggest("c") is None, "a job may come back"
    with caplog.at_level(logging.WARNING, logger="flsel"):
        made.on_trial_complete("a", error=True)
    assert caplog.messages == [
        "job 0: its process died at round 0, out of memory perhaps; another one goes on from there"
    ]
    assert made.suggest("c") == first
    made.on_trial_complete("b", {"round": 3})
    made.on_trial_complete("c", {"round": 3})
    assert made.suggest("d") == Dispatcher.FINISHED
    assert made.workload.ends == {0: None, 1: None}


RAISED = ImportError("no module named mine")
TASK_ERROR = RayTaskError("train", f"Traceback\nImportError: {RAISED}", RAISED, "ray::", 1, "127.0.0.1")


@pytest.mark.parametrize("error", [TASK_ERROR, ActorDiedError(TASK_ERROR)])
def test_what_a_process_raised_is_said(error, tmp_path, caplog):
    """It did not die, and memory has nothing to do with it."""
    made = Dispatcher(Jobs(tmp_path, 1), retries=1)
    with caplog.at_level(logging.WARNING, logger="flsel"):
        for name in ("a", "b"):
            made.suggest(name)
            trial = SimpleNamespace(trial_id=name, get_pickled_error=lambda: error)
            dispatcher.Stopper(made).on_trial_error(None, trial)
            made.on_trial_complete(name, error=True)
    raised = "its process raised ImportError: no module named mine"
    assert caplog.messages == [f"job 0: {raised}, at round 0; another one goes on from there"]
    made.end_dead_jobs()
    assert made.workload.ends == {0: f"{raised} (more often than `retries` allows)"}


def test_a_dead_process_is_only_believed_where_its_cluster_lives_on(tmp_path, monkeypatch):
    """Where Ray's daemon died, the job is unfinished, and nobody's fault."""
    jobs = Jobs(tmp_path, 3)
    made = Dispatcher(jobs, retries=0)
    for name in ("first", "second", "third"):
        made.suggest(name)
    now = [100.0]
    monkeypatch.setattr(dispatcher, "monotonic", lambda: now[0])
    made.on_trial_complete("first", error=True)
    made.on_trial_result("third", {"round": 2})
    assert jobs.ends == {}
    now[0] += 2 * dispatcher._DOUBT_SECONDS
    made.on_trial_complete("second", error=True)
    made.on_trial_result("third", {"round": 4})
    assert list(jobs.ends) == [0]
    made.end_dead_jobs()
    assert list(jobs.ends) == [0, 1]
    assert "its process died" in str(jobs.ends[0])


def test_the_last_dead_process_is_believed_once_the_daemon_would_have_ended_the_driver(tmp_path, monkeypatch):
    made = Dispatcher(Jobs(tmp_path, 1), retries=0)
    made.suggest("first")
    made.on_trial_complete("first", error=True)
    waited = list[float]()
    monkeypatch.setattr(dispatcher, "sleep", waited.append)
    made.finish()
    assert waited == [pytest.approx(dispatcher._DAEMON_SECONDS, abs=1)]
    assert "its process died" in str(made.workload.ends[0])
