"""A run gets more rounds where nothing in its past depended on their number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import left_behind, resumed, same, settings
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler

from flsel.availability import SLN
from flsel.commands.cli import main
from flsel.config.groups import EvaluationConfig, LocalConfig, OutputConfig
from flsel.errors import UserError
from flsel.execution.job import Job
from flsel.execution.run import execute, resume, run
from flsel.runner.result import Result
from flsel.selector import Plan, View
from flsel.selectors import AFL, HiCS, Uniform


def decaying(optimizer: Any) -> LRScheduler:
    return ExponentialLR(optimizer, 0.9)


def test_an_extended_run_equals_one_that_had_the_rounds_from_the_start(tmp_path: Path) -> None:
    local = LocalConfig(lr_schedule=decaying)
    config = settings(tmp_path, selector=AFL(), availability=SLN(0.5), local=local)
    run(replace(config, rounds=10, output=OutputConfig(dir=str(tmp_path), name="whole", checkpoint_every=1)))
    run(config)
    assert main(["train", "--resume", str(tmp_path / "run"), "--rounds", "10"]) == 0
    assert same(left_behind(tmp_path / "run"), left_behind(tmp_path / "whole"))
    extended, whole = (Result.load(tmp_path / name) for name in ("run", "whole"))
    assert extended.fingerprints == whole.fingerprints
    assert extended.summary["planned_rounds"] == 10
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["rounds"] == 10


@pytest.mark.parametrize(
    ("changes", "rounds", "message"),
    [
        ({"selector": HiCS()}, 9, r"selector HiCS looks at the total \(view\.rounds\)"),
        ({}, 3, "6 have been run"),
        ({"evaluation": EvaluationConfig(target=0.01, stop_at_target=True)}, 9, "a callback ended it"),
    ],
)
def test_a_run_that_cannot_be_extended_says_why_and_stays(
    tmp_path: Path, changes: dict[str, Any], rounds: int, message: str
) -> None:
    run(settings(tmp_path, **changes))
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("[!.]*.*")}
    with pytest.raises(UserError, match=f"the run cannot have {rounds} rounds instead of 6: .*{message}"):
        resume(tmp_path / "run", rounds)
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("[!.]*.*")} == before


def test_a_schedule_over_the_total_cannot_be_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(settings(tmp_path))
    factors = lambda schedule, rounds: [1 - t / rounds for t in range(rounds)]  # noqa: E731
    monkeypatch.setattr("flsel.runner.extend_rounds.lr_factors", factors)
    with pytest.raises(UserError, match=r"local\.lr_schedule depends on the total"):
        resume(tmp_path / "run", 9)


def test_an_interrupted_extension_goes_on(tmp_path: Path) -> None:
    """The new number of rounds is in config.yaml before there is a checkpoint with it."""
    config = settings(tmp_path)
    run(config)
    with resumed(tmp_path / "run", 9):
        pass
    assert not (tmp_path / "run/summary.json").exists()
    assert resume(tmp_path / "run").summary["rounds"] == 9


class Late(Uniform):
    """Reads the total from a round on, by what the module does not show."""

    def __init__(self, since: int = 0) -> None:
        self.since = since

    def select(self, view: View) -> Plan:
        if view.round >= self.since:
            getattr(view, "".join(["rou", "nds"]))
        return super().select(view)


def test_what_a_selector_has_read_counts_and_not_what_it_will(tmp_path: Path) -> None:
    run(settings(tmp_path, selector=Late(since=5)))
    with pytest.raises(UserError, match="selector Late looks at the total"):
        resume(tmp_path / "run", 9)
    run(settings(tmp_path / "other", selector=Late(since=6)))
    assert resume(tmp_path / "other/run", 9).summary["rounds"] == 9
    with pytest.raises(UserError, match="selector Late looks at the total"):
        resume(tmp_path / "other/run", 12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "3"], "flsel compare --seeds"),
        (["--resume", "runs/x", "--rounds", "many"], "rounds must be a whole number, got 'many'"),
        (["--resume", "runs/x", "--seed", "3"], "no other settings but --rounds"),
    ],
)
def test_what_train_does_not_do_is_said(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_session_at_a_folder_may_extend_too(tmp_path: Path) -> None:
    config = settings(tmp_path)
    run(config)
    assert (
        execute(Job(replace(config, rounds=8), tmp_path / "run", tracked=False).session()).summary["rounds"]
        == 8
    )
