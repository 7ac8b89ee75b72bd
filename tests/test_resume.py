"""A resumed run equals an uninterrupted one, bit for bit."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from runs import InterruptIn, differ_when_resumed, left_behind, lines, same, settings, wait_for
from torch import Tensor, optim

from flsel.availability import LN
from flsel.config.groups import EvaluationConfig, LocalConfig, OutputConfig
from flsel.errors import Interrupted, UserError
from flsel.execution.job import Job
from flsel.execution.run import execute, resume, run
from flsel.objectives import FedProx, Objective
from flsel.params import Params
from flsel.selector import Plan, Selector, View
from flsel.selectors.afl import AFL
from flsel.selectors.powd import PowD

STATEFUL: dict[str, Any] = {
    "selector": AFL(),
    "availability": LN(0.5),
    "objective": FedProx(0.1),
    "server_optimizer": partial(optim.Adam, lr=0.05),
}


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
@pytest.mark.parametrize("selector", [AFL(), PowD()])
def test_the_server_resumes_at_every_round(tmp_path: Path, backend: Any, selector: Any) -> None:
    local = LocalConfig(batch_size=5, steps=3, optimizer=partial(optim.Adam, lr=0.01), backend=backend)
    config = settings(tmp_path, local=local, **(STATEFUL | {"selector": selector}))
    assert differ_when_resumed(config, range(config.rounds)) == []


class NoisySGD(optim.SGD):
    """The server's noise, as for differential privacy."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for param in self.param_groups[0]["params"]:
            param.add_(torch.randn_like(param), alpha=0.1)


class NoisySum(Objective):
    """The same, on the sum of the updates."""

    def aggregate(self, delta: Params) -> Params:
        return {name: value + 0.1 * torch.randn_like(value) for name, value in delta.items()}


class InOneOrder(Selector):
    """Draws once for all, where a selector has no generator of its own."""

    def reset(self, sizes: Tensor, num_classes: int) -> None:
        self.order = np.random.permutation(len(sizes))

    def select(self, view: View) -> Plan:
        return Plan.star(self.order[[view.round, view.round + 1]])


@pytest.mark.parametrize(
    "noisy",
    [
        {"server_optimizer": partial(NoisySGD, lr=1.0)},
        {"objective": NoisySum()},
        {"selector": InOneOrder()},
    ],
    ids=["step", "sum", "reset"],
)
def test_what_the_server_draws_is_the_same_in_a_resumed_run(tmp_path: Path, noisy: dict[str, Any]) -> None:
    assert differ_when_resumed(settings(tmp_path, rounds=3, **noisy), [1]) == []


@pytest.mark.parametrize("every", [1, 4])
def test_ctrl_c_saves_and_the_run_goes_on(tmp_path: Path, every: int) -> None:
    output = OutputConfig(dir=str(tmp_path), name="run", checkpoint_every=every)
    config = settings(tmp_path, output=output, **STATEFUL)
    run(config)
    whole = left_behind(tmp_path / "run")
    for round in (0, 2, 4):
        broken = settings(
            tmp_path,
            output=OutputConfig(dir=str(tmp_path), name=f"stop{round}", checkpoint_every=every),
            callbacks=(partial(InterruptIn, round),),
            **STATEFUL,
        )
        with pytest.raises(Interrupted, match=rf"after round {round + 1} of 6.*flsel train --resume"):
            run(broken)
        folder = tmp_path / f"stop{round}"
        assert not (folder / "summary.json").exists()
        execute(Job(config, folder, tracked=False).session())
        assert same(left_behind(folder), whole)


def test_rows_after_the_checkpoint_are_executed_again(tmp_path: Path) -> None:
    config = settings(tmp_path, **STATEFUL)
    with pytest.raises(Interrupted, match="after round 3"):
        run(replace(config, callbacks=(partial(InterruptIn, 2),)))
    folder = tmp_path / "run"
    early = (folder / "checkpoints" / "last.ckpt").read_bytes()
    execute(Job(config, folder, tracked=False).session())
    whole = left_behind(folder)
    # What a kill between two checkpoints leaves: an older checkpoint beside newer, partly torn lines.
    (folder / "checkpoints" / "last.ckpt").write_bytes(early)
    with open(folder / "rounds.jsonl", "a") as stream:
        stream.write('{"round": 6, "pl')
    (folder / "summary.json").unlink()
    resume(folder)
    assert same(left_behind(folder), whole)


@pytest.mark.parametrize("finished", [True, False])
def test_rounds_without_a_checkpoint_are_not_executed_again(tmp_path: Path, finished: bool) -> None:
    run(settings(tmp_path))
    folder = tmp_path / "run"
    shutil.rmtree(folder / "checkpoints")
    if not finished:
        (folder / "summary.json").unlink()
    files = {path: path.read_bytes() for path in folder.glob("*.*")}
    with pytest.raises(UserError, match=r"last\.ckpt is missing"):
        resume(folder)
    assert {path: path.read_bytes() for path in folder.glob("*.*")} == files


def test_a_run_that_never_reached_a_checkpoint_starts_again(tmp_path: Path) -> None:
    run(settings(tmp_path))
    folder = tmp_path / "run"
    whole = left_behind(folder)
    shutil.rmtree(folder / "checkpoints")
    for name in ("summary.json", "rounds.jsonl", "metrics.csv"):
        (folder / name).unlink()
    resume(folder)
    assert same(left_behind(folder), whole)


def test_a_finished_run_resumes_to_the_same_result(tmp_path: Path) -> None:
    config = settings(tmp_path)
    result = run(config)
    whole = left_behind(tmp_path / "run")
    assert same(resume(tmp_path / "run").final, result.final)
    assert same(left_behind(tmp_path / "run"), whole)


def test_a_run_that_stopped_at_its_target_stays_stopped(tmp_path: Path) -> None:
    config = settings(tmp_path, evaluation=EvaluationConfig(target=0.05, stop_at_target=True))
    run(config)
    whole = left_behind(tmp_path / "run")
    assert whole["state"]["rounds_to_target"] == 0
    resume(tmp_path / "run")
    assert same(left_behind(tmp_path / "run"), whole)


@pytest.mark.parametrize("damage", ["truncate", "garbage", "foreign", "object"])
def test_damaged_checkpoints_are_refused(tmp_path: Path, damage: str) -> None:
    config = settings(tmp_path)
    run(config)
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "garbage":
        path.write_bytes(b"not a checkpoint")
    elif damage == "foreign":
        torch.save({"state_dict": {}}, path)
    else:
        torch.save({"version": 1, "server": Path("x")}, path)
    with pytest.raises(UserError, match=r"damaged or not a checkpoint of flsel"):
        resume(tmp_path / "run")


def test_a_checkpoint_of_another_config_is_refused(tmp_path: Path) -> None:
    run(settings(tmp_path))
    with pytest.raises(UserError, match="belongs to another config"):
        execute(Job(settings(tmp_path, seed=5), tmp_path / "run", tracked=False).session())


def launch(arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "flsel", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_killed_run_resumes_to_the_uninterrupted_result(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        rounds=60,
        output=OutputConfig(dir=str(tmp_path), name="whole", checkpoint_every=3),
        **STATEFUL,
    )
    run(config)
    whole = left_behind(tmp_path / "whole")
    described = config.to_dict()
    described["output"]["name"] = "killed"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(described))

    folder = tmp_path / "killed"
    pause = random.Random(time.time_ns())
    process = launch(["--config", str(tmp_path / "config.yaml")])
    kills = 0
    while kills < 2:
        # Wait for the first sign of progress of this process, then kill it at any moment after.
        seen = len(lines(folder / "rounds.jsonl"))
        wait_for(
            lambda seen=seen, process=process: (
                len(lines(folder / "rounds.jsonl")) != seen or process.poll() is not None
            )
        )
        time.sleep(pause.uniform(0.0, 0.3))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        process = launch(["--resume", str(folder)])
    assert process.wait(timeout=500) == 0
    assert kills >= 1, "the run was over before it could be killed: give it more rounds"
    assert same(left_behind(folder), whole)
