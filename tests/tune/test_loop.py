"""The driver's loop where Ray gives up: fewer trials at a time after one was killed for its memory."""

from __future__ import annotations

import errno
import logging
import os
from types import SimpleNamespace

import pytest
from jobs import job
from optuna.trial import TrialState
from ray.exceptions import OutOfMemoryError
from spaces import config_of

from flsel.errors import UserError
from flsel_tune import loop, searcher
from flsel_tune.config import SweepConfig
from flsel_tune.space_file import make_space
from flsel_tune.study import Study

SPACE = make_space({"selector.lam": {"type": "uniform", "low": 0, "high": 1}}, config_of("HiCS"))


def killed() -> RuntimeError:
    """The error that Ray's loop ends with when its memory monitor has killed a trial's process."""
    error = RuntimeError("the loop failed")
    error.__cause__ = OutOfMemoryError("too much")
    return error


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Play a sweep of four trials whose tuners start as many as they may and end as told; see the limits."""
    common = job(tmp_path)
    made = Study(tmp_path, "s", metrics=common.metrics, config=SweepConfig(), rounds=6, seed=0)
    limits = []

    def play(errors, **changes):
        left = iter(errors)
        watch = SimpleNamespace(close=lambda: None, running=0)
        monkeypatch.setattr(loop, "Watch", lambda *_: watch)

        def tuner(plan, search, watch, *, trials, concurrent):
            study = search.study

            def fit():
                watch.running = min(concurrent or 3, trials)
                # Ray asks for one more than it has room for.
                for _ in range(watch.running + 1 - len(study.trials(TrialState.RUNNING))):
                    study.ask(SPACE)
                limits.append(concurrent)
                error = next(left, None)
                if error is not None:
                    raise error
                for trial in study.trials(TrialState.RUNNING):
                    study.tell(trial.number, TrialState.COMPLETE, [0.5], {})

            return SimpleNamespace(fit=fit)

        monkeypatch.setattr(loop, "_tuner", tuner)
        plan = SimpleNamespace(
            sweep=SweepConfig(trials=4, **changes),
            job=common,
            space=SPACE,
            config=SimpleNamespace(track=None),
        )
        return loop.play(plan, made, SimpleNamespace())

    play.limits, play.study = limits, made
    return play


def test_a_kill_for_memory_leaves_fewer_trials_at_a_time(sweep, caplog):
    with caplog.at_level(logging.WARNING, logger="flsel"):
        assert sweep([killed(), killed()])
    assert sweep.limits == [None, 2, 1]
    assert len(sweep.study.trials(TrialState.COMPLETE)) == 4
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory: the sweep goes on with max_concurrent 2",
        "out of memory: the sweep goes on with max_concurrent 1",
    ]


def test_too_little_memory_for_one_trial_is_one_sentence(sweep):
    with pytest.raises(UserError, match=r"too little memory for a single trial.*flsel tune --resume"):
        sweep([killed()], max_concurrent=1)


def test_a_full_disk_is_one_sentence(sweep):
    said = r"cannot be written: no space left on device\. Once that is mended: flsel tune --resume"
    with pytest.raises(UserError, match=said):
        sweep([OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])


@pytest.mark.parametrize("error", [RuntimeError("another"), ConnectionError("another")])
def test_other_errors_are_not_hidden(sweep, error):
    with pytest.raises(type(error), match="another"):
        sweep([error])
    assert sweep.limits == [None]


def test_a_dead_process_is_only_believed_where_its_cluster_lives_on(tmp_path, monkeypatch):
    """Where Ray's daemon died, the trial is unfinished, and nobody's fault."""
    common = job(tmp_path)
    made = Study(tmp_path, "s", metrics=common.metrics, config=SweepConfig(), rounds=6, seed=0)
    search = searcher.StudySearch(made, SPACE, common)
    for name in ("first", "second", "third"):
        search.suggest(name)
    now = [100.0]
    monkeypatch.setattr(searcher, "monotonic", lambda: now[0])
    search.on_trial_complete("first", error=True)
    search.on_trial_result("third", {"round": 2})
    assert len(made.unfinished()) == 3
    now[0] += 2 * searcher._DOUBT_SECONDS
    search.on_trial_complete("second", error=True)
    search.on_trial_result("third", {"round": 4})
    assert [trial.number for trial in made.trials(TrialState.FAIL)] == [0]
    search.bury()
    dead = made.trials(TrialState.FAIL)
    assert [trial.number for trial in dead] == [0, 1]
    assert all(trial.user_attrs["result"]["died"] for trial in dead)
    assert [number for number, _ in made.unfinished()] == [2]
