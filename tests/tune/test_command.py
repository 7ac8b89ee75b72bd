"""``flsel tune`` up to where trials start: what is given, what is refused, what may change on a resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict, fields
from functools import partial
from unittest.mock import Mock

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import TensorDataset

from flsel.commands import cli
from flsel.config import RunConfig
from flsel.data.data_config import DataConfig
from flsel.errors import UserError
from flsel.partition import IID
from flsel.runner.lock import Lock
from flsel_tune import search, sweep_result
from flsel_tune.space_checks import check_space
from flsel_tune.sweep import _new_folder
from flsel_tune.sweep_config import SweepConfig

HICS = ["--selector", "HiCS", "--data.validation", "0.1", "--rounds", "5"]


@pytest.fixture
def begun(monkeypatch):
    """What would be started or resumed, in place of Ray; every value of a space is taken for good."""
    found = []
    monkeypatch.setattr("flsel_tune.sweep_plan.check_space", lambda space, parses: None)
    monkeypatch.setattr(search, "begin_sweep", lambda plan: found.append(plan))
    monkeypatch.setattr(sweep_result, "resume_sweep", lambda plan, folder, **_: found.append((plan, folder)))
    read = sweep_result.Sweep.load
    # What was not started cannot be read; a sweep to be resumed is there.
    monkeypatch.setattr(sweep_result.Sweep, "load", lambda folder: read(folder) if folder else Mock())
    return found


@pytest.fixture
def refused(begun, capsys):
    """Run a command that must be refused before anything starts; return its one sentence."""

    def run(*arguments):
        capsys.readouterr()
        assert cli.main(["tune", *map(str, arguments)]) == 2
        out, err = capsys.readouterr()
        assert (out, begun) == ("", [])
        *_, last = err.splitlines()
        assert err.count("error: ") == 1
        assert last.startswith("flsel: error: ")
        return last.removeprefix("flsel: error: ")

    return run


@pytest.fixture
def sweep(tmp_path):
    """The folder of a sweep that was started."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    config = RunConfig.from_dict({}, {"selector": "HiCS", "data.validation": 0.1, "rounds": 5})
    plan = SweepConfig(space="elsewhere/gone.yaml", trials=8, metric="validation/accuracy")
    stored = json.loads(json.dumps(asdict(plan)))
    space = {"selector.lam": {"type": "uniform", "low": 0.0, "high": 1.0}}
    for name, content in (("config", config.to_dict()), ("sweep", stored), ("space", space)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return folder


def written(folder, name, content):
    (folder / name).write_text(content)
    return str(folder / name)


def test_settings_of_the_sweep_and_of_its_runs(begun, tmp_path):
    space = written(tmp_path, "space.yaml", "selector.lam: {type: uniform, low: 0.2, high: 0.4}")
    arguments = [
        "--max-concurrent",
        "2",
        "--trials=6",
        "--space",
        space,
        "--seeds",
        "[1,2]",
        "--clients_per_round",
        "3",
    ]
    assert cli.main(["tune", *HICS, *arguments]) == 0
    (plan,) = begun
    assert plan.sweep == SweepConfig(
        space=space, trials=6, max_concurrent=2, seeds=(1, 2), metric="validation/accuracy"
    )
    assert (plan.config.clients_per_round, plan.config.rounds) == (3, 5)
    assert [(d.key, d.low, d.high) for d in plan.space.dimensions] == [("selector.lam", 0.2, 0.4)]
    assert (plan.job.seeds, plan.job.rounds, plan.job.report_every) == ((1, 2), 5, 1)


def test_without_a_space_the_selectors_own_ranges_are_searched(begun):
    assert cli.main(["tune", *HICS]) == 0
    assert [d.key for d in begun[0].space.dimensions] == [
        "selector.temperature", "selector.lam", "selector.gamma0",
    ]  # fmt: skip


@pytest.mark.parametrize("spelling", ["--max-concurrent=3", "--max_concurrent=3"])
def test_dashes_are_underscores(begun, spelling):
    assert cli.main(["tune", *HICS, spelling, "--grace-rounds", "2"]) == 0
    assert (begun[0].sweep.max_concurrent, begun[0].sweep.grace_rounds) == (3, 2)


def test_a_file_of_the_sweeps_settings(begun, tmp_path):
    file = written(tmp_path, "sweep.yaml", "trials: 9\nsampler: random\nseeds: [4, 5]\nmemory: 1e-1\n")
    assert cli.main(["tune", *HICS, "--trials", "7", "--sweep", file]) == 0
    sweep = begun[0].sweep
    assert (sweep.trials, sweep.sampler, sweep.seeds, sweep.memory) == (7, "random", (4, 5), 0.1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trails", "8"], "there is no setting trails; did you mean trials?"),
        (["--max-concurent", "2"], "there is no setting max-concurent; did you mean max_concurrent?"),
        (["--schedular", "asha"], "there is no setting schedular; did you mean scheduler?"),
        (["--roundz", "8"], "there is no setting roundz; did you mean rounds?"),
        (["--selector.lamb", "1"], "did you mean lam?"),
        (["--trials", "many"], "trials must be a whole number in [1, 1,000,000], got 'many'."),
        (["--trials", "0"], "trials must be a whole number in [1, 1,000,000], got 0."),
        (["--trials", "10000000"], "got 10000000, which take 116 days or more."),
        (["--trials"], "trials needs a value: --trials VALUE."),
        (["--sampler", "tpee"], "one of tpe, cmaes, gp, random, grid, got 'tpee'; did you mean tpe?"),
        (["--seeds", "[1,1]"], "seeds must differ from one another, got [1, 1]."),
        (["--seeds", "[-1]"], "seeds must be a list of one or more whole numbers >= 0 or null, got [-1]."),
        (["--gpus", "1.5"], "gpus must be a whole number or below 1, got 1.5."),
        (["--cpus", "0"], "cpus must be a finite number > 0, got 0.0."),
        (["--reduction", "1"], "reduction must be a whole number >= 2, got 1."),
        (["--name", "a/b"], "name must be a plain folder name, got 'a/b'."),
        (["--space", "nowhere.yaml"], "space nowhere.yaml: there is no such file."),
        (["--sweep", "nowhere.yaml"], "nowhere.yaml: there is no such file."),
        (["--sweep"], "--sweep needs a file of the sweep's settings: --sweep FILE."),
        (["--resume"], "--resume takes the folder of a sweep: flsel tune --resume SWEEP."),
        (["--resume", "nowhere"], "there is no folder nowhere; a "),
        (["--resume", "."], "is not the folder of a sweep: it holds no config.yaml."),
        (["--metric", "test/accuracy"], "metric must not be measured on the test set"),
        (["--metric", "accuracy"], "metric accuracy must be an accuracy or a loss, such as validation"),
        (["--data.validation", "0"], "needs a validation set, and this run holds none out"),
        (["--metric", "validation/loss,validation/accuracy"], "scheduler must be none with several metrics"),
        (["--grace-rounds", "5"], "grace_rounds must be below the 5 rounds of a trial for scheduler "),
        (["--report-every", "50"], "report_every must be below the 5 rounds"),
        (["--sampler", "grid"], "must be a choice, int or quantised for the sampler grid"),
        (["--accelerator", "gpu"], "gpus must be above 0 for accelerator gpu"),
        (["--selector", "Uniform"], "space auto has nothing to search: Uniform declares no range"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(refused, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    given = dict(zip(HICS[::2], HICS[1::2], strict=True))
    others = [word for key, value in given.items() if key != arguments[0] for word in (key, value)]
    assert said in refused(*others, *arguments)


def lines():
    pair = TensorDataset(torch.randn(40, 3), torch.randn(40, 1))
    return pair, pair


def test_a_regression_is_searched_by_its_loss(begun):
    config = RunConfig(
        data=DataConfig(name="test_command.lines", validation=0.2), model=partial(nn.Linear, 3, 1),
        loss=nn.MSELoss, partition=IID(), clients=4, clients_per_round=2, rounds=2, quiet=True,
    )  # fmt: skip
    search.tune(config, {"local.batch_size": {"type": "int", "low": 2, "high": 4}}, scheduler="none")
    assert begun[0].sweep.metric == "validation/loss"
    assert begun[0].job.metrics[0].mode == "min"


def test_a_misspelt_key_in_the_sweeps_file(refused, tmp_path):
    file = written(tmp_path, "sweep.yaml", "trails: 9")
    assert refused(*HICS, "--sweep", file) == (
        f"{file}: there is no setting trails of a sweep; did you mean trials?"
    )


@pytest.mark.parametrize("key", ["trials", "mode", "cpus", "folder"])
def test_null_where_a_value_is_needed(refused, tmp_path, key):
    file = written(tmp_path, "sweep.yaml", f"{key}: null")
    assert refused(*HICS, "--sweep", file).startswith(f"{key} must be ")


def test_arguments_of_ones_own_classes_are_no_typos(refused):
    said = refused(*HICS, "--selector.memory", "3")
    assert "did you mean memory?" not in said
    assert "selector.memory" in said


def test_a_space_that_does_not_fit(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("flsel_tune.sweep_plan.check_space", check_space)
    file = written(tmp_path, "space.yaml", "selector.lam: {type: uniform, low: 0, high: 2}")
    assert "space selector.lam at 2.0: selector.lam must be a number in [0, 1], got 2.0." in refused(
        *HICS, "--space", file
    )


def test_samplers_that_a_space_does_not_suit(refused, tmp_path):
    one = written(tmp_path, "one.yaml", "selector.lam: {type: uniform, low: 0, high: 1}")
    assert "sampler cmaes needs one metric and at least two dimensions that are numbers" in refused(
        *HICS, "--space", one, "--sampler", "cmaes"
    )
    large = {key: {"type": "int", "low": 1, "high": 9_999} for key in ("local.steps", "local.batch_size")}
    assert refused(
        *HICS, "--space", written(tmp_path, "large.yaml", yaml.safe_dump(large)), "--sampler", "grid"
    ) == ("space must have at most 100,000 points for the sampler grid, got 99,980,001.")
    conditional = written(
        tmp_path, "when.yaml", "selector.signal: {type: choice, values: [bias], when: {selector: HiCS}}"
    )
    assert refused(*HICS, "--space", conditional, "--sampler", "grid") == (
        "space selector.signal must have no condition for the sampler grid."
    )


# --- resume ---


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["--trials", "64"],
        ["--max-concurrent", "3", "--retries", "0", "--memory", "1.5", "--address", "auto"],
        HICS,
    ],
)
def test_a_resumed_sweep_may_change_how_it_is_run(begun, sweep, changes):
    """It goes on with its own space, whatever has become of the file that it was read from."""
    assert cli.main(["tune", "--resume", str(sweep), *changes]) == 0
    ((plan, folder),) = begun
    assert folder == sweep
    assert [d.key for d in plan.space.dimensions] == ["selector.lam"]
    if "--trials" in changes:
        assert plan.sweep.trials == 64
    else:
        assert plan.sweep.trials == 8
    assert plan.sweep.max_concurrent == (3 if "--max-concurrent" in changes else None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--metric", "validation/loss"], "metric must stay 'validation/accuracy' when"),
        (["--mode", "min"], "mode must stay 'auto' when"),
        (["--sampler", "random"], "sampler must stay 'tpe' when"),
        (["--seeds", "[1,2]"], "seeds must stay null when"),
        (["--report_every", "3"], "report_every must stay null when"),
        (["--space", "gone.yaml"], "space gone.yaml: there is no such file."),
        ([*HICS, "--rounds", "6"], "config.yaml: leave selector, data.validation, rounds out"),
        (["--clients_per_round", "3"], "config.yaml: leave clients_per_round out, or start a new sweep"),
        (["--selector.d", "3"], "config.yaml: leave selector.d out, or start a new sweep"),
        (["--nonsense.x", "3"], "A resume may change trials, max_concurrent, gpus, memory, address, retries"),
        (["--from", "other"], "--from must stay null when"),
        (["--output.dir", "other"], "folder must stay 'sweeps' when"),
        (["--gpus", "0.5"], "gpus must stay 0.0 when"),
        (["--trials", "0"], "trials must be a whole number in [1, 1,000,000], got 0."),
        (["--trails", "9"], "there is no setting trails; did you mean trials?"),
    ],
)  # fmt: skip
def test_a_resumed_sweep_may_not_change_what_it_finds(refused, sweep, changes, said):
    assert said in refused("--resume", sweep, *changes)


def test_the_same_space_may_be_named_again(begun, sweep):
    again = {"selector.lam": {"low": 0, "high": 1, "type": "uniform"}}
    file = written(sweep.parent, "again.yaml", yaml.safe_dump(again))
    assert cli.main(["tune", "--resume", str(sweep), "--space", file]) == 0
    assert len(begun) == 1


def test_a_resumes_settings_are_kept_once_a_cluster_has_taken_them(sweep, monkeypatch):
    def full():
        raise UserError("no room.")

    monkeypatch.setattr("flsel_tune.sweep_plan.check_space", lambda space, parses: None)
    monkeypatch.setattr("flsel_tune.sweep._run_trials", lambda plan, study: None)
    for room, code, kept in ((full, 2, 8), (nullcontext, 0, 64)):
        monkeypatch.setattr("flsel_tune.sweep.cluster", lambda *given, room=room: room())
        assert cli.main(["tune", "--resume", str(sweep), "--trials", "64"]) == code
        assert yaml.safe_load((sweep / "sweep.yaml").read_text())["trials"] == kept


def test_a_resume_leaves_settings_that_say_the_same_as_they_are_written(sweep, monkeypatch):
    monkeypatch.setattr("flsel_tune.sweep_plan.check_space", lambda space, parses: None)
    monkeypatch.setattr("flsel_tune.sweep._run_trials", lambda plan, study: None)
    monkeypatch.setattr("flsel_tune.sweep.cluster", lambda *given: nullcontext())
    file = sweep / "sweep.yaml"
    plain = yaml.safe_load(file.read_text())
    del plain["retries"]
    text = "# mine\n" + yaml.safe_dump({**plain, "cpus": 1}, sort_keys=True)
    file.write_text(text)
    for given, kept in (([], True), (["--retries", "2"], True), (["--retries", "5"], False)):
        assert cli.main(["tune", "--resume", str(sweep), *given]) == 0
        assert (file.read_text() == text) is kept
    assert yaml.safe_load(file.read_text())["retries"] == 5


@pytest.mark.parametrize(
    ("given", "name"),
    [(["--output.name", "a"], "a"), (["--output.name", "a", "--name", "b"], "b"), ([], "synthetic-hics")],
)
def test_the_name_of_a_sweep(begun, tmp_path, given, name):
    for count in ("", "-2"):
        assert cli.main(["tune", *HICS, "--folder", str(tmp_path), *given]) == 0
        assert _new_folder(begun[-1]).name == name + count


def test_a_sweep_has_one_writer(sweep, monkeypatch, capsys):
    monkeypatch.setattr("flsel_tune.sweep_plan.check_space", lambda space, parses: None)
    with Lock(sweep, "sweep"):
        assert cli.main(["tune", "--resume", str(sweep)]) == 2
    *_, said = capsys.readouterr().err.splitlines()
    assert said.startswith(f"flsel: error: sweep {sweep} is being written by process {os.getpid()} on ")


def test_dead_trials_are_retried_where_a_resume_asks_for_it(sweep, begun, monkeypatch, refused):
    asked = []
    monkeypatch.setattr(
        sweep_result, "resume_sweep", lambda plan, folder, retry_failed: asked.append(retry_failed)
    )
    for given in ([], ["--retry-failed"], ["--retry_failed=true"], ["--retry-failed=false"]):
        assert cli.main(["tune", "--resume", str(sweep), *given]) == 0
    assert asked == [False, True, True, False]
    assert "--retry-failed goes with --resume" in refused(*HICS, "--retry-failed")


@pytest.mark.parametrize("name", ["config.yaml", "sweep.yaml", "space.yaml"])
def test_a_folder_that_lacks_a_file_is_no_sweep(refused, sweep, name):
    (sweep / name).unlink()
    assert refused("--resume", sweep) == f"{sweep} is not the folder of a sweep: it holds no {name}."


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("sweep.yaml", "trials: [", "the file is not valid YAML"),
        ("sweep.yaml", "trials: -1", "trials must be a whole number in [1"),
        ("sweep.yaml", "trails: 3", "there is no setting trails of a sweep"),
        ("space.yaml", "selector.lam: 3", "space selector.lam must be an entry such as"),
        ("space.yaml", "- 3", "the file must be a mapping of settings"),
        ("config.yaml", "rounds: 0", "rounds must be a whole number in [1"),
        ("config.yaml", "selector: 3", "selector must be one of "),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written(refused, sweep, name, text, said):
    (sweep / name).write_text(text)
    before = {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}
    sentence = refused("--resume", sweep)
    assert str(sweep / name) in sentence, sentence
    assert said in sentence
    assert {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()} == before


# --- help ---


def test_help_lists_the_sweeps_settings(begun, capsys):
    for word in ("--help", "-h"):
        assert cli.main(["tune", word]) == 0
        shown = capsys.readouterr().out
        assert all(f"--{field.name}" in shown for field in fields(SweepConfig))
        assert "flsel tune --resume SWEEP" in shown
        assert "--sweep" in shown
    assert begun == []


def test_help_starts_nothing_heavy(tmp_path):
    code = (
        "import sys; from flsel.commands.cli import main; code = main(['tune', '--help']); "
        "sys.exit(code or bool({'ray', 'wandb', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=500
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir())
