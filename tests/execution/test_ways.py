"""One job, executed by all ways: alone, in a stack, by Ray, as a trial; its end means the same in each."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ending
import pytest
import runs
from ending import Diverge, Interrupt, Raise, StopAt
from lightning.pytorch.callbacks import EarlyStopping

from flsel.config import RunConfig
from flsel.data.data_config import DataConfig
from flsel.errors import Interrupted, UserError
from flsel.execution.active_run import ActiveRun
from flsel.execution.executor import Executor, Listener, Resources
from flsel.execution.in_process import InProcess
from flsel.execution.job import Job, Outcome
from flsel.execution.on_ray.runs import OnRay, ReportingRuns, _Runs
from flsel.execution.run import execute
from flsel.execution.stack import Stack
from flsel_tune.metric import parse_metrics
from flsel_tune.trial import ReportingTrial, SweepJob

SEED = 3
# Of a run's files, those that every way writes; pictures and labels depend on who wants them.
FILES = {"config.yaml", "metrics.csv", "rounds.jsonl", "summary.json", "checkpoints"}


def job(folder: Path, *callbacks: Any, **changes: Any) -> Job:
    data = DataConfig(synthetic=runs.SMALL, validation=0.2)
    config = runs.settings(folder, callbacks=tuple(callbacks), threads=1, seed=SEED, data=data, **changes)
    return Job(RunConfig.from_dict(config.to_dict()), folder / "run", tracked=False)


def alone(made: Job) -> None:
    with suppress(UserError):
        execute(made.session())


def executed(executor: Executor, made: Job) -> None:
    told: list[Job] = []
    with executor.ready(None):
        executor.execute([made], made.folder.parent, Listener(told.append, lambda rounds: None))
    assert told == [made], "a job ends once"


def stacked(made: Job) -> None:
    """Beside another run, which is not affected."""
    other = replace(made, config=replace(made.config, callbacks=()), folder=made.folder.parent / "other")
    told: list[Job] = []
    executor = InProcess()
    with executor.ready(None):
        executor.execute([made, other], made.folder.parent, Listener(told.append, lambda rounds: None))
    assert set(told) == {made, other}
    assert other.outcome == Outcome("complete")


def in_a_process_of_rays(made: Job) -> None:
    """What Ray's actor does with a job, without Ray."""
    sent = _Runs([[made]], made.folder.parent, Listener(lambda job: None, lambda rounds: None)).next()
    assert sent is not None
    steps = ReportingRuns(*sent, None)
    while not steps.advance()["done"]:
        pass
    steps.close()


def as_a_trial(made: Job) -> None:
    config = made.config.to_dict()
    common = SweepJob(
        config=config,
        seeds=(SEED,),
        metrics=parse_metrics("validation/accuracy", "auto"),
        rounds=made.config.rounds,
        report_every=2,
        folder=str(made.folder.parent / "sweep"),
    )
    steps = ReportingTrial(common, 0, {}, None)
    while not (report := steps.advance())["done"]:
        pass
    steps.close()
    assert report["status"] == Job(made.config, common.trial_folder(0) / f"seed{SEED}").outcome.status
    made.folder.parent.mkdir(exist_ok=True)
    made.folder.symlink_to(common.trial_folder(0) / f"seed{SEED}")


WAYS: dict[str, Callable[[Job], None]] = {
    "alone": alone,
    "in process": lambda made: executed(InProcess(), made),
    "stacked": stacked,
    "Ray's process": in_a_process_of_rays,
    "trial": as_a_trial,
}
ENDS = {
    "all rounds": ((), "complete", 6),
    "EarlyStopping": (
        (partial(EarlyStopping, monitor="test/loss", min_delta=100.0, patience=2),),
        "complete",
        3,
    ),
    "callback": ((StopAt,), "complete", 2),
    "last round": ((partial(StopAt, round=6),), "complete", 6),
    "failed": ((Raise,), "failed", 2),
    "diverged": ((Diverge,), "diverged", 2),
}


def left(made: Job) -> dict[str, Any]:
    """What a job leaves: outcome, files and bits."""
    names = {path.name for path in made.folder.iterdir()} & (FILES | {"failure.json"})
    lines = (made.folder / "rounds.jsonl").read_text().splitlines()
    bits = runs.left_behind(made.folder) if made.outcome.status == "complete" else {}
    return {"outcome": made.outcome, "files": names, "rounds": len(lines), "bits": bits}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_job_is_the_same_by_all_ways(end: str, tmp_path: Path) -> None:
    callbacks, status, rounds = ENDS[end]
    found = {}
    for name, way in WAYS.items():
        made = job(tmp_path / name.replace(" ", "-").replace("'", ""), *callbacks)
        way(made)
        found[name] = left(made)
    for name, other in found.items():
        assert (other["outcome"].status, other["rounds"]) == (status, rounds), name
        assert other["files"] >= (FILES if status == "complete" else {"failure.json"}), name
        assert other["outcome"] == found["alone"]["outcome"], name
        assert other["files"] == found["alone"]["files"], name
        assert runs.same(other["bits"], found["alone"]["bits"]), name


@pytest.mark.parametrize("way", ["alone", "in process", "stacked"])
def test_an_interrupted_job_is_resumed_to_the_same_bits(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of Ray's and a trial are interrupted with their process: see the tests of kills."""
    monkeypatch.chdir(tmp_path)
    whole, cut = job(tmp_path / "whole"), job(tmp_path / "cut", Interrupt)
    WAYS[way](whole)
    with pytest.raises(Interrupted, match=r"stopped after round 3 of 6"):
        WAYS[way](cut)
    assert cut.outcome == Outcome("unfinished")
    WAYS[way](cut)
    assert cut.outcome == Outcome("complete")
    assert runs.same(runs.left_behind(whole.folder)["metrics"], runs.left_behind(cut.folder)["metrics"])


def test_ray_ends_jobs_as_this_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ends at once, since Ray takes seconds to start."""
    # Where Ray's processes find the callbacks. All of sys.path would come before what is installed there.
    monkeypatch.setenv("PYTHONPATH", str(Path(ending.__file__).parent))
    ends: list[str] = list(ENDS)
    (tmp_path / "ray").mkdir()
    made = {end: job(tmp_path / "ray" / end.replace(" ", "-"), *ENDS[end][0]) for end in ends}
    alone_too = {end: job(tmp_path / "alone" / end.replace(" ", "-"), *ENDS[end][0]) for end in ends}
    told: list[Job] = []
    executor, ctrl_c = OnRay(Resources(max_concurrent=2)), signal.getsignal(signal.SIGINT)
    with executor.ready(None):
        executor.execute(list(made.values()), tmp_path / "ray", Listener(told.append, lambda rounds: None))
    assert signal.getsignal(signal.SIGINT) is ctrl_c
    assert set(told) == set(made.values())
    outcomes = {end: made[end].outcome.status for end in ends}
    assert outcomes == {end: ENDS[end][1] for end in ends}, [each.outcome for each in made.values()]
    for end in ends:
        alone(alone_too[end])
        one, other = left(made[end]), left(alone_too[end])
        assert one["outcome"] == other["outcome"], end
        assert one["files"] == other["files"], end
        assert runs.same(one["bits"], other["bits"]), end


def test_a_job_whose_processes_died_has_failed(tmp_path: Path) -> None:
    made, told = job(tmp_path), list[Job]()
    _Runs([[made]], tmp_path, Listener(told.append, lambda rounds: None)).ended(0, {}, "its process died")
    assert (made.outcome, told) == (Outcome("failed", "its process died"), [made])


def test_a_run_that_another_process_writes_is_left_alone(tmp_path: Path) -> None:
    made = job(tmp_path)
    with held(made):
        second = ActiveRun(made.folder, lambda: made.session(None))
        with Stack([second]) as stack:
            assert not stack.active
        assert "is being written by" in str(second.error)
        assert made.outcome == Outcome("unfinished")


@contextmanager
def held(made: Job) -> Iterator[None]:
    session = made.session(None)
    with session:
        yield
