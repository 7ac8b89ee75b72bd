"""What a wider space, or a new sweep, keeps of trials."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from flsel.config import RunConfig
from flsel.errors import UserError
from flsel_tune import earlier_trials
from flsel_tune.earlier_trials import extend_space
from flsel_tune.metric import parse_metrics
from flsel_tune.search import _earlier_trials
from flsel_tune.space import KEPT
from flsel_tune.space_file import make_space, to_plain
from flsel_tune.study import BASELINE, EARLIER, SETTINGS
from flsel_tune.sweep import _new_folder, _study
from flsel_tune.sweep_config import SweepConfig
from flsel_tune.sweep_plan import SweepPlan, base_config
from flsel_tune.sweep_result import Sweep
from flsel_tune.trial import SweepJob
from flsel_tune.write_results import trial_rows

RATE = {"type": "loguniform", "low": 0.01, "high": 0.3}
D = {"type": "int", "low": 6, "high": 20, "when": {"selector": "PowD"}}
SPACE = {
    "selector": {"type": "choice", "values": ["Uniform", "PowD"]},
    "selector.d": D,
    "local.optimizer.lr": RATE,
}
WIDER: dict[str, Any] = {
    **SPACE,
    "selector": {"type": "choice", "values": ["HiCS", "PowD", "Uniform"]},
    "selector.temperature": {"type": "loguniform", "low": 0.001, "high": 10, "when": {"selector": "HiCS"}},
    "local.optimizer.lr": {"type": "loguniform", "low": 0.001, "high": 0.5},
    "local.batch_size": {"type": "int", "low": 1, "high": 64},
}
CHANGES = {"data.validation": 0.1, "rounds": 5, "local.optimizer.momentum": 0.5}


def planned(folder: Path, entries: Any = None, changes: Any = None, **settings: Any) -> SweepPlan:
    config = RunConfig.from_dict({}, {**CHANGES, **(changes or {})})
    base = {"folder": str(folder), "trials": 6, "scheduler": "none", "metric": "validation/accuracy"}
    sweep = SweepConfig(**{**base, **settings})
    metrics = parse_metrics(sweep.metric, sweep.mode)
    job = SweepJob(base_config(config, sweep), sweep.seeds or (config.seed,), metrics, config.rounds, 1, "")
    return SweepPlan(config, sweep, make_space(entries or SPACE, config.to_dict()), job, None)


def begun(
    folder: Path, entries: Any = None, changes: Any = None, *, earlier: Any = (), **settings: Any
) -> SweepPlan:
    """A new sweep with its files, of which no trial has run."""
    plan = replace(planned(folder, entries, changes, **settings), earlier=tuple(earlier))
    return replace(plan, job=replace(plan.job, folder=str(_new_folder(plan))))


def run_trials(plan: SweepPlan, study: Any, count: int) -> None:
    for _ in range(count):
        number, settings = study.ask(plan.space)
        value = math.sin(sum(float(v) for v in settings.values() if not isinstance(v, str)))
        study.report(number, 1, value)
        found = {"status": "complete", "seeds": [value], "round": 5}
        study.tell(number, TrialState.COMPLETE, [value], found)


@pytest.fixture
def ended(tmp_path: Path) -> SweepPlan:
    """A sweep of six complete trials, and one that was stopped in its midst."""
    plan = begun(tmp_path / "sweeps")
    study = _study(plan)
    run_trials(plan, study, 6)
    study.ask(plan.space)
    return plan


def test_a_wider_space_keeps_every_trial_and_the_sampler_learns_from_all(ended: SweepPlan) -> None:
    before = trial_rows(_study(ended), ended.job.metrics)
    wider = replace(ended, space=make_space(WIDER, ended.config.to_dict()))
    study = _study(wider, extends=True)
    folder = Path(ended.job.folder)
    assert yaml.safe_load((folder / "space.yaml").read_text()) == to_plain(wider.space)
    rows = trial_rows(study, ended.job.metrics)
    for row, old in zip(rows, before, strict=True):
        # What is searched from here on is in the settings of each, at the value that it ran with.
        assert row.pop("settings") == {**old.pop("settings"), "local.batch_size": 10}
        assert row == old
    assert study.unfinished() == [(6, {**study.unfinished()[0][1]})]
    choices = CategoricalDistribution(("HiCS", "PowD", "Uniform"))
    assert {trial.distributions["selector"] for trial in study.trials()} == {choices}
    # The new class is tried with its defaults first, then the sampler goes on.
    number, settings = study.ask(wider.space)
    assert (number, settings["selector"], settings["local.optimizer.lr"]) == (7, "HiCS", 0.1)
    study.tell(number, TrialState.COMPLETE, [0.5], {"status": "complete"})
    run_trials(wider, study, 12)
    assert study.left(20) == 20 - 19
    # A second resume finds nothing to extend.
    assert not extend_space(folder, _study(wider, extends=True), wider)


def test_an_extended_sweep_is_asked_the_same_however_often_it_is_interrupted(tmp_path: Path) -> None:
    asked = []
    for name, pieces in (("one", 1), ("many", 5)):
        plan = begun(tmp_path / name, name="s")
        run_trials(plan, _study(plan), 6)
        wider = replace(plan, space=make_space(WIDER, plan.config.to_dict()))
        for _ in range(pieces):
            study = _study(wider, extends=True)
            run_trials(wider, study, 10 // pieces)
        asked.append([trial.user_attrs[SETTINGS] for trial in study.trials()])
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"selector": {"type": "choice", "values": ["PowD", "HiCS"]}}, "selector Uniform"),
        ({"local.optimizer.lr": {**RATE, "low": 0.02}}, "local.optimizer.lr 0.01"),
        ({"local.optimizer.lr": {**RATE, "type": "uniform"}}, "local.optimizer.lr of type loguniform"),
        ({"selector.d": {**D, "high": 19}}, "selector.d 20"),
    ],
)
def test_a_space_that_does_not_contain_the_old_one_is_refused(
    ended: SweepPlan, change: Any, lost: str
) -> None:
    folder = Path(ended.job.folder)
    files = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    narrow = replace(ended, space=make_space({**SPACE, **change}, ended.config.to_dict()))
    with pytest.raises(UserError) as caught:
        _study(narrow, extends=True)
    said = str(caught.value)
    assert said.startswith("the space must contain that with which ")
    assert (
        f"began, which had {lost}; widen it, or start a new sweep with the trials that fit: flsel tune --from"
        in said
    )
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == files


def test_a_kill_between_the_files_leaves_a_sweep_that_the_next_resume_extends(
    ended: SweepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = replace(ended, space=make_space(WIDER, ended.config.to_dict()))

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(earlier_trials, "write_journal", kill)
        with pytest.raises(KeyboardInterrupt):
            _study(wider, extends=True)
    # What a plain resume reads is the space of the file.
    assert len(_study(wider, extends=True).trials()) == 7


def test_a_grid_is_not_extended(tmp_path: Path) -> None:
    values = {"selector": {"type": "choice", "values": ["Uniform", "AFL"]}}
    plan = begun(tmp_path, values, sampler="grid")
    _study(plan)
    wider = {"selector": {"type": "choice", "values": ["Uniform", "AFL", "PowD"]}}
    with pytest.raises(UserError, match="cannot change, since its sampler is a grid"):
        _study(replace(plan, space=make_space(wider, plan.config.to_dict())), extends=True)


def test_a_new_sweep_starts_with_the_trials_that_it_could_have_tried(
    ended: SweepPlan, tmp_path: Path
) -> None:
    other = Sweep.load(ended.job.folder)
    space = {"selector": WIDER["selector"], "local.optimizer.lr": RATE}  # without selector.d
    plan = planned(tmp_path, space, name="next")
    trials, said = _earlier_trials(other, plan)
    # A PowD with another d than its default is none that this sweep could have run.
    fitting = [t for t in other.trials[:6] if t["settings"].get("selector.d", 12) == 12]
    assert 2 <= len(fitting) < 6
    assert said.startswith(f"{len(fitting)} of 7 trials of {other.folder} are taken; the others lie outside")
    made = begun(tmp_path, space, name="next", earlier=trials)
    study = _study(made)
    rows = trial_rows(study, made.job.metrics)
    for row, old in zip(rows, fitting, strict=True):
        assert row["validation/accuracy"] == old["validation/accuracy"]
        assert row["from"] == str(other.folder / "trials" / f"{old['trial']:04d}")
        kept = {key: value for key, value in old["settings"].items() if key != "selector.d"}
        assert row["settings"] == kept
    # They are not among those to be run, and known points of theirs are not tried again.
    assert study.left(4) == 4
    _, settings = study.ask(made.space)
    assert settings["selector"] == "HiCS"
    assert not any(BASELINE in trial.user_attrs for trial in study.trials())


@pytest.mark.parametrize(
    ("entries", "changes", "settings", "said"),
    [
        (None, None, {"metric": "validation/loss"}, "metric must be "),
        (None, None, {"seeds": (1, 2)}, "seeds must be [0] as in "),
        (None, None, {"sampler": "grid"}, "start_from must be null for the sampler grid"),
        (None, {"rounds": 6}, {}, "trial 0 has rounds 5."),
        (None, {"clients": 20}, {}, "trial 0 has clients 30."),
        ({"local.optimizer.lr": {**RATE, "low": 0.2}}, {"selector": "AFL"}, {}, "trial 0 has selector"),
    ],
)
def test_trials_that_cannot_be_compared_are_refused(
    ended: SweepPlan, tmp_path: Path, entries: Any, changes: Any, settings: Any, said: str
) -> None:
    plan = planned(tmp_path, entries, changes, **settings)
    with pytest.raises(UserError) as caught:
        _earlier_trials(Sweep.load(ended.job.folder), plan)
    assert said in str(caught.value), caught.value


def test_what_the_space_cannot_hold_is_kept_as_it_is_in_the_config(tmp_path: Path) -> None:
    """A temperature of auto, which every sweep of HiCS tries first."""
    hot = {"selector.temperature": {"type": "loguniform", "low": 0.001, "high": 10}}
    plan = begun(tmp_path / "one", hot, {"selector": "HiCS"})
    run_trials(plan, _study(plan), 3)
    again = planned(
        tmp_path, {"selector.temperature": {**hot["selector.temperature"], "high": 20}}, {"selector": "HiCS"}
    )
    trials, said = _earlier_trials(Sweep.load(plan.job.folder), again)
    assert said == f"3 of 3 trials of {plan.job.folder} are taken"
    assert trials[0].user_attrs[KEPT] == ["selector.temperature"]
    assert [EARLIER in trial.user_attrs for trial in trials] == [True] * 3
