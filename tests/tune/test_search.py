"""Sweeps from Python: with objects of a notebook, in a notebook, and what is refused beforehand."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from optuna.trial import TrialState
from runs import settings
from spaces import config_of

import flsel
from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.selectors import PowD, Uniform
from flsel_tune import sweep_result
from flsel_tune.metric import parse_metrics
from flsel_tune.space_file import make_space
from flsel_tune.study import Study
from flsel_tune.sweep_config import CHANGEABLE, SweepConfig
from flsel_tune.trial import SweepJob
from flsel_tune.write_results import write_results

# What a notebook has: a class, a model and a dataset that no other process can import.
NOTEBOOK = """
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

import flsel
from flsel.partition import Dirichlet
from flsel.selector import Plan, Range, Selector, Tunable


@dataclass
class Mine(Selector):
    share: Annotated[float, Range(0, 1), Tunable(0.0, 0.5)] = 0.2

    def select(self, view):
        return Plan.star(view.rng.permutation(view.pool)[: view.clients_per_round])


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (300,), generator=generator)
    x = torch.eye(3)[y] + torch.randn(300, 3, generator=generator)
    config = flsel.RunConfig(
        rounds=4, clients=6, clients_per_round=2, selector=Mine(), model=nn.Linear(3, 3), threads=1,
        quiet=True,
        data=flsel.DataConfig(name=(x.numpy(), y.numpy()), validation=0.2), partition=Dirichlet(alpha=0.5),
    )
    server = {"data.server": {"type": "uniform", "low": 0.0, "high": 0.1}}
    who = {"selector": {"type": "choice", "values": [Mine, "Uniform"]}}
    sweep = flsel.tune(config, {**who, **server}, trials=2, scheduler="none", max_concurrent=1, name="s")
    print(len(sweep.trials), {row["status"] for row in sweep.trials})
    again = flsel.run(sweep.best)
    print(again.last(1)["validation/accuracy"] == sweep.best_value)
    print(sweep._repr_html_().count("<tr>"), (sweep.folder / "figures").exists())
"""


def test_a_notebook_tunes_its_own_classes_models_and_data(tmp_path):
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 {'complete'}", "True", "3 False"]


def test_tune_takes_what_a_sweep_has():
    taken = inspect.signature(flsel.tune).parameters
    told = {each.name: each.default for each in fields(SweepConfig)}
    assert {name: taken[name].default for name in told} == told
    assert set(taken) - set(told) == {"config", "pictures"}
    kept = set(inspect.signature(flsel.Sweep.resume).parameters) - {
        "self",
        "space",
        "retry_failed",
        "pictures",
    }
    assert kept == set(CHANGEABLE)


SIZES = {"local.batch_size": {"type": "int", "low": 2, "high": 4}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": "x"}, "tune takes a RunConfig, such as flsel.RunConfig(rounds=50), got 'x'."),
        ({"space": 5}, "space must be a mapping, a file or the name of a space, got 5."),
        ({"trials": "many"}, "trials must be a whole number in [1, 1,000,000], got 'many'."),
        ({"seeds": 3}, "seeds must be a list of one or more whole numbers >= 0 or null, got 3."),
        ({"space": {"selector.d": {"type": "int"}}}, "space selector.d: int needs low."),
        ({"metric": "test/accuracy", "space": SIZES}, "metric must not be measured on the test set"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(tmp_path, change, said):
    given = {"config": settings(tmp_path), "space": {}, "folder": str(tmp_path / "sweeps")} | change
    with pytest.raises(UserError) as refused:
        flsel.tune(given.pop("config"), **given)
    assert str(refused.value).startswith(said)
    assert not (tmp_path / "sweeps").exists()


@pytest.fixture
def sweep(tmp_path: Path) -> flsel.Sweep:
    """A sweep of three complete trials, without the runs."""
    described = RunConfig.from_dict(config_of("PowD"), {"rounds": 4}).to_dict()
    config = SweepConfig(trials=4, sampler="random", space="space.yaml", metric="validation/accuracy")
    space = {"selector.d": {"type": "int", "low": 6, "high": 12}}
    stored = {name: getattr(config, name) for name in config.__dataclass_fields__}
    for name, content in (("config", described), ("sweep", stored), ("space", space)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(content))))
    metrics = parse_metrics(config.metric, config.mode)
    study = Study(tmp_path, "s", metrics=metrics, config=config, rounds=4, seed=0)
    for value in (0.5, 0.8, 0.7):
        number, _ = study.ask(make_space(space, described))
        study.tell(number, TrialState.COMPLETE, [value], {"status": "complete", "seeds": [value], "round": 4})
    write_results(study, SweepJob(described, (1,), metrics, 4, 1, str(tmp_path)))
    return flsel.Sweep.load(tmp_path)


def test_a_sweep_tells_its_best_trial_and_shows_itself(sweep):
    assert (sweep.best_value, [row["status"] for row in sweep.trials]) == (0.8, ["complete"] * 3)
    assert repr(sweep.best.selector) == repr(PowD(d=sweep.best_settings["selector.d"]))
    shown = sweep._repr_html_()
    assert "Best of 3 trials: validation/accuracy 0.8 in trial 1." in shown
    assert shown.index("0.8000") < shown.index("0.7000") < shown.index("0.5000")
    assert "<polyline" in shown
    assert "history" in sweep.figures
    assert sweep.plot("history")._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="there is no figure tree of these trials; there are history"):
        sweep.plot("tree")
    assert len(sweep.study.trials) == 3


def test_what_a_resume_may_change_from_python(sweep, monkeypatch):
    found = []
    monkeypatch.setattr(sweep_result, "resume_sweep", lambda plan, folder, **how: found.append((plan, how)))
    again = sweep.resume(trials=8, max_concurrent=2)
    ((plan, how),) = found
    assert (plan.sweep.trials, plan.sweep.max_concurrent, plan.pictures) == (8, 2, False)
    assert how == {"retry_failed": False}
    assert again.best_value == 0.8
    with pytest.raises(UserError, match=r"gpus must stay 0\.0 when .* is resumed, got 1\.0"):
        sweep.resume(gpus=1.0)


def test_a_sweep_without_a_complete_trial_has_no_best(sweep, tmp_path):
    (tmp_path / "study.journal").unlink()
    empty = flsel.Sweep.load(tmp_path)
    assert "0 trials, none complete yet" in empty._repr_html_()
    with pytest.raises(UserError, match=r"no trial of .* is complete yet"):
        _ = empty.best_settings


def test_models_that_a_file_cannot_tell_apart_are_refused():
    from torch import nn

    from flsel.config.model_object import by_description

    one, other = (
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)),
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)),
    )
    other.load_state_dict(one.state_dict())
    with pytest.raises(UserError, match="model Sequential stands for two different objects"):
        by_description([one, other])
    assert by_description([one, one, nn.Linear, Uniform]).keys() == by_description([one]).keys()
