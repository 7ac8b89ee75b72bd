"""Stacks of runs in processes of Ray: how jobs are cut, what a death costs, and that bits stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import runs

from flsel.config import RunConfig
from flsel.data.data_config import DataConfig
from flsel.errors import UserError
from flsel.execution.executor import Listener, Resources
from flsel.execution.in_process import InProcess
from flsel.execution.job import Job, Outcome, write_failure
from flsel.execution.on_ray import cluster
from flsel.execution.on_ray import runs as on_ray
from flsel.execution.on_ray.runs import OnRay, ReportingRuns, _Runs
from flsel.execution.stack_rounds import StackRounds, begun
from flsel.files import write_atomic

SHARING = {"local.backend": "compiled"}
ALONE = {"local.backend": "sequential"}


def jobs(folder: Path, count: int, **changes: Any) -> list[Job]:
    """Jobs of eight rounds that can share a stack, with a checkpoint after every other round."""
    folder.mkdir(exist_ok=True)
    config = runs.settings(folder, rounds=8, threads=1, data=DataConfig(synthetic=runs.SMALL))
    config = replace(config, output=replace(config.output, checkpoint_every=2))
    plain = config.to_dict()
    return [
        Job(
            RunConfig.from_dict(plain, {"seed": n + 1, "local.backend": "compiled"} | changes),
            folder / f"s{n}",
        )
        for n in range(count)
    ]


class Noted:
    """A listener that notes what it is told."""

    def __init__(self) -> None:
        self.ended = list[Job]()
        self.rounds = 0

    @property
    def listener(self) -> Listener:
        return Listener(self.ended.append, self._advanced)

    def _advanced(self, rounds: int) -> None:
        self.rounds += rounds


def in_process(made: list[Job]) -> None:
    executor = InProcess()
    with executor.ready(None):
        executor.execute(made, made[0].folder.parent, Noted().listener)


def executed(workload: _Runs, deaths: int = 0) -> list[int]:
    """Execute a workload as Ray does; return how many runs each process took. So many die after a report."""
    taken, again = list[int](), list[Any]()
    while asked := again.pop(0) if again else workload.next():
        process, done = ReportingRuns(*asked, None), False
        while not done:
            report = process.advance()
            workload.reported(*asked, report)
            done = report["done"]
            if deaths and not done:
                deaths, done = deaths - 1, True
                process.close()
                again += workload.again(*asked, smaller=False)
                break
        else:
            workload.ended(asked[0], report, None)
        taken.append(report["taken"])
    return taken


def grouped(
    made: list[Job], monkeypatch: pytest.MonkeyPatch, processes: int, **resources: Any
) -> list[list[Job]]:
    monkeypatch.setattr(on_ray, "room", lambda given: processes)
    return OnRay(Resources(**resources))._groups(made, made[0].folder.parent)


@pytest.mark.parametrize(
    ("count", "processes", "sizes"),
    [(1, 2, [1]), (6, 2, [3, 3]), (12, 2, [6, 6]), (18, 2, [4, 5, 4, 5]), (3, 8, [1, 1, 1])],
)
def test_every_process_gets_as_many_runs(count, processes, sizes, tmp_path, monkeypatch):
    groups = grouped(made := jobs(tmp_path / "c", count), monkeypatch, processes)
    assert [len(group) for group in groups] == sizes
    assert [job for group in groups for job in group] == made


def test_who_reserves_memory_for_a_run_gets_one_in_a_process(tmp_path, monkeypatch):
    groups = grouped(jobs(tmp_path / "c", 5), monkeypatch, 2, memory=1.0)
    assert [len(group) for group in groups] == [1] * 5


def test_a_run_that_failed_before_is_tried_alone(tmp_path, monkeypatch):
    made = jobs(tmp_path / "c", 4)
    made[1].folder.mkdir()
    write_failure(made[1].folder, Outcome("failed", "it raised"))
    groups = grouped(made, monkeypatch, 1)
    assert groups == [[made[0], made[2], made[3]], [made[1]]]
    noted = Noted()
    executed(_Runs(groups, tmp_path / "c", noted.listener))
    assert set(noted.ended) == set(made)
    assert {job.outcome.status for job in made} == {"complete"}


@pytest.mark.parametrize("deaths", [0, 1, 3])
def test_a_group_has_the_bits_of_a_stack_of_this_process(deaths, tmp_path, monkeypatch):
    """Also where its process dies, and another goes on from the checkpoints."""
    here, there = jobs(tmp_path / "here", 3), jobs(tmp_path / "there", 3)
    in_process(here)
    noted = Noted()
    workload = _Runs(grouped(there, monkeypatch, 1), tmp_path / "there", noted.listener)
    assert executed(workload, deaths) == [3] * (1 + deaths)
    assert (workload.left, noted.rounds) == (0, 24)
    assert sorted(noted.ended, key=there.index) == there
    for one, other in zip(here, there, strict=True):
        assert runs.same(runs.left_behind(one.folder), runs.left_behind(other.folder))


def test_runs_that_share_no_stack_are_given_back(tmp_path, monkeypatch):
    """So that the next free process takes them, not the one that has the first."""
    made = jobs(tmp_path / "c", 4, **ALONE)
    workload = _Runs(grouped(made, monkeypatch, 1), tmp_path / "c", Noted().listener)
    assert executed(workload) == [1, 1, 1, 1]
    assert {job.outcome.status for job in made} == {"complete"}


def test_a_group_of_two_kinds_is_two_stacks(tmp_path, monkeypatch):
    made = jobs(tmp_path / "c", 2) + [
        replace(job, folder=tmp_path / "c" / f"x{n}")
        for n, job in enumerate(jobs(tmp_path / "c", 2, **{"local.batch_size": 3}))
    ]
    workload = _Runs(grouped(made, monkeypatch, 1), tmp_path / "c", Noted().listener)
    assert executed(workload, deaths=1) == [2, 2, 2]
    assert {job.outcome.status for job in made} == {"complete"}


def test_a_resume_cuts_the_groups_that_were_planned(tmp_path, monkeypatch):
    """The last bits of a run depend on who shares its stack: half of the runs have ended at the resume."""
    made = jobs(tmp_path / "c", 18)
    first = grouped(made, monkeypatch, 2)
    workload = _Runs(first, tmp_path / "c", Noted().listener)
    number, sent = workload.next() or pytest.fail("there are groups")
    process = ReportingRuns(number, sent, None)
    while not process.advance()["done"]:
        pass
    stopped = ReportingRuns(*(workload.next() or pytest.fail("there are groups")), None)
    stopped.advance()
    stopped.close()
    left = [job for job in made if job.outcome.status != "complete"]
    assert len(left) == 14
    assert grouped(left, monkeypatch, 2) == first[1:]


def test_a_group_whose_processes_die_is_executed_run_by_run(tmp_path, monkeypatch):
    """The runs that had ended stay; of the others each is tried alone, and only one that dies then failed."""
    made, noted = jobs(tmp_path / "c", 3), Noted()
    workload = _Runs(grouped(made, monkeypatch, 1), tmp_path / "c", noted.listener)
    number, sent = workload.next() or pytest.fail("there is a group")
    made[0].folder.mkdir()
    write_failure(
        made[0].folder, Outcome("diverged", "nothing is finite")
    )  # its process died before it said so
    again = workload.again(number, sent, smaller=True)
    assert noted.ended == made[:1]
    assert [[job["folder"] for job in each["jobs"]] for _, each in again] == [
        [str(j.folder)] for j in made[1:]
    ]
    assert workload.again(*again[0], smaller=True) == []
    workload.ended(again[0][0], {}, "its process died")
    workload.ended(again[1][0], {}, None)
    assert (noted.ended, workload.left) == (made, 0)
    assert made[1].outcome == Outcome("failed", "its process died")


def test_a_group_that_lacks_memory_dies_and_blames_nobody(tmp_path, monkeypatch):
    """Another process may have taken the memory: the run is not recorded as failed."""
    made = jobs(tmp_path / "c", 2)
    workload = _Runs(grouped(made, monkeypatch, 1), tmp_path / "c", Noted().listener)
    process = ReportingRuns(*(workload.next() or pytest.fail("there is a group")), None)

    def lacking(*given: Any, **named: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr("flsel.execution.stack.train", lacking)
    with pytest.raises(UserError, match="the memory is not enough"):
        process.advance()
    assert not list((tmp_path / "c").rglob("failure.json"))
    assert "out of memory" in (made[0].folder / "out-of-memory.txt").read_text()


def test_a_record_that_another_stack_replaces_is_gone(tmp_path):
    folders = [tmp_path / name for name in "abcd"]
    StackRounds(tmp_path, folders).plan()
    StackRounds(tmp_path, folders[:2]).keep(dict.fromkeys(folders[:2], 0))
    StackRounds(tmp_path, folders[2:]).plan()
    config = runs.settings(tmp_path)
    made = [Job(config, folder) for folder in folders]
    assert begun(tmp_path, made) == [made[:2], made[2:]]
    assert begun(tmp_path, made[1:]) == [made[2:]], "one of the stack is not to be executed"


@pytest.mark.parametrize("text", ["", "[]", "null", '{"a": "x"}', '{"a": 1.5}', "{" * 50_000])
def test_a_damaged_record_counts_for_nothing(text, tmp_path):
    (tmp_path / ".together").mkdir()
    write_atomic(tmp_path / ".together/0.json", text)
    assert begun(tmp_path, [Job(runs.settings(tmp_path), tmp_path / "a")]) == []


@pytest.mark.parametrize(
    ("resources", "fits"),
    [
        (Resources(), 5),
        (Resources(max_concurrent=3), 3),
        (Resources(cpus=2), 2),
        (Resources(cpus=0.5), 10),
        (Resources(gpus=0.25), 3),
        (Resources(cpus=0.5, gpus=0.25), 4),
        (Resources(gpus=1), 1),
        (Resources(gpus=2), 1),
    ],
)
def test_ray_has_room_for_what_fits_each_machine(resources, fits, monkeypatch):
    machines = [{"CPU": 3.0, "GPU": 1.0}, {"CPU": 2.0}]
    monkeypatch.setattr(cluster, "_machines", lambda: machines)
    assert cluster.room(resources) == fits
