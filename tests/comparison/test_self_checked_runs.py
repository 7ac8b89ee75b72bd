"""The self-check in whole runs: what the summary says, what a resume does, what a comparison says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import made
import pytest
import torch
from mymodels import CLASSES, INPUTS
from runs import differ_when_resumed, settings
from torch import nn

import flsel
from flsel.execution.run import run
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.local.visit import Visit
from flsel.params import Params
from flsel.runner.result import Result
from flsel.runner.summary import sequential_since


class Plain(nn.Linear):
    """A layer by a name of its own."""


def measured(result: Result) -> str:
    # Texts, since the initial model's row holds a NaN.
    return repr([{k: v for k, v in row.items() if not k.startswith("seconds/")} for row in result.rows])


def goes_wrong(monkeypatch: pytest.MonkeyPatch, first: int, seeds: int, by: float) -> None:
    """Let the compiled trainer go wrong from a round on, in one of so many seeds."""
    train = CompiledTrainer.train

    def wrong(self: CompiledTrainer, visits: Sequence[Visit]) -> Params:
        ends = train(self, visits)
        for place, visit in enumerate(visits):
            if visit.round >= first and visit.program.seed % seeds == seeds - 1:
                for end in ends.values():
                    end[place] += by
        return ends

    monkeypatch.setattr(CompiledTrainer, "train", wrong)


@pytest.fixture
def off_from_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled trainer goes wrong in round 4 where the run's seed is odd."""
    goes_wrong(monkeypatch, 4, 2, 0.01)


def test_a_run_of_a_model_that_is_trained_wrongly_is_sequentials(
    tmp_path: Path, capfd: Any, caplog: Any, monkeypatch: Any
) -> None:
    torch.manual_seed(0)
    goes_wrong(monkeypatch, 0, 1, 1.0)
    net, local = Plain(INPUTS, CLASSES), settings(tmp_path).local
    results = [
        run(settings(tmp_path / name, model=net, quiet=False, local=replace(local, **changes)))
        for name, changes in {"auto": {}, "plain": {"backend": "sequential"}}.items()
    ]
    assert measured(results[0]) == measured(results[1])
    found = results[0].self_check["train"]
    assert (found["round"], found["late"], found["tolerance"]) == (0, False, 0.001)
    assert found["doubt"] == ""
    assert found["gap"] > 0.1
    assert results[1].self_check == {}
    assert caplog.text.count("local.check: sequential trains Plain from round 0 on") == 1
    said = capfd.readouterr()
    assert (said.out + said.err).count("sequential since round 0: the fast trainer was ") == 1


@pytest.mark.usefixtures("off_from_four")
def test_a_resumed_run_keeps_what_the_check_decided(tmp_path: Path) -> None:
    assert differ_when_resumed(settings(tmp_path, seed=1), range(6)) == []
    found = run(settings(tmp_path, seed=1)).self_check["train"]
    assert (found["round"], found["late"]) == (4, True)
    doubt = "rounds 0 to 3 were trained fast, so all numbers may be wrong: run again with "
    assert found["doubt"] == f"{doubt}--local.backend sequential --local.workers 1"
    assert sequential_since(found).endswith(f"; {found['doubt']}")


def test_a_trainer_that_failed_has_no_distance_in_the_summary(tmp_path: Path, monkeypatch: Any) -> None:
    def fails(self: CompiledTrainer, visits: Sequence[Visit]) -> Params:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(CompiledTrainer, "train", fails)
    result = run(settings(tmp_path))
    text = (result.folder / "summary.json").read_text()
    assert (
        json.loads(text, parse_constant=lambda name: pytest.fail(name))["self_check"]["train"]["gap"] is None
    )
    assert result.self_check["train"]["where"] == "RuntimeError: no such kernel"


@pytest.mark.usefixtures("off_from_four", "here")
def test_one_run_of_a_stack_leaves_the_others_alone(tmp_path: Path) -> None:
    """Seeds 1 and 2 train in one stack, and the models of seed 1 are wrong."""
    config = settings(tmp_path)
    found = flsel.compare(config, ["Uniform", "PowD:d=4"], seeds=2, name="c")
    runs = {(one.variant, one.seed): one for one in found.analysis.runs}
    for (_, seed), one in runs.items():
        assert one.result is not None
        assert ("train" in one.result.self_check) is (seed == 1)
    assert any(note.startswith("Sequential trained 2 of 4 runs") for note in found.notes)
    assert any(note.startswith("In 2 of these runs that was found after the first") for note in found.notes)
    alone = run(replace(config, seed=2))
    together = runs["Uniform", 2].result
    assert together is not None
    assert together.final["test/loss"] == pytest.approx(alone.final["test/loss"], rel=1e-4)


def test_the_report_names_runs_that_sequential_trained(tmp_path: Path) -> None:
    for seed in (1, 2):
        made.run(tmp_path / f"u{seed}", made.climb(0.7), seed=seed)
        made.run(tmp_path / f"p{seed}", made.climb(0.8), seed=seed, selector="PowD")
    assert not any("local.check" in note for note in flsel.compare([*tmp_path.iterdir()]).notes)
    for name, late in (("u1", False), ("p2", True)):
        file = tmp_path / name / "summary.json"
        found = {"round": 4, "gap": 0.1, "tolerance": 0.001, "where": "0.weight", "late": late}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"self_check": {"train": found}}))
    notes = flsel.compare([*tmp_path.iterdir()]).notes
    assert "Sequential trained 2 of 4 runs, since the fast trainer gave other models (local.check)." in notes
    late = "In 1 of these runs that was found after the first round, in round 4 at the latest. All their "
    again = "numbers may be wrong: run again with --local.backend sequential --local.workers 1."
    assert late + again in notes
