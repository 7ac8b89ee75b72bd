"""The command line as a person meets it: help, configs that come back, runs that go on, exit codes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from flsel.commands.cli import main
from flsel.config import RunConfig

TINY = [
    "--rounds", "2", "--clients", "4", "--clients_per_round", "2", "--accelerator", "cpu",
    "--data.synthetic.size_mean", "1", "--data.synthetic.size_std", "0.5", "--data.synthetic.size_min", "10",
    "--data.synthetic.dimension", "8", "--data.synthetic.classes", "4", "--local.steps", "2",
    "--output.name", "run", "--output.checkpoint_every", "1",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("here", "figures_where_they_are_tested")


def call(*arguments: str) -> int:
    """Exit code of the program, argparse's own ways out included."""
    try:
        return main(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)


def test_without_arguments_it_says_what_there_is(capsys: Any) -> None:
    assert call() == 0
    assert "flsel COMMAND --help" in capsys.readouterr().out
    assert call("tarin") == 2
    assert capsys.readouterr().err == "flsel: error: there is no command tarin; did you mean train?\n"
    assert call("--quiet") == 2
    assert capsys.readouterr().err.startswith("flsel: error: there is no command --quiet; there are train, ")


def test_the_first_help_is_quick() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "flsel", "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 5.0  # that it loads no torch is asserted in test_imports; the time is in benchmarks


@pytest.mark.parametrize("command", ["train", "tune", "compare"])
def test_every_setting_is_explained(command: str, capsys: Any) -> None:
    """Without an explanation, or with one that cannot be read, an option has nothing but its type."""
    assert call(command, "--help") == 0
    options = re.split(r"^  --", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    bare = [option.split()[0] for option in options if re.search(r"default: [^()]*\)\s+\(", option)]
    assert bare == []


def test_the_help_of_train_fits_in_the_head(capsys: Any) -> None:
    assert call("train", "--help") == 0
    text = capsys.readouterr().out
    assert "flsel train --resume RUN" in text
    assert "--local.batch_size" in text
    assert "a whole number" in text
    assert "default: LogisticRegression" in " ".join(text.split())
    assert "torch.nn.Module" not in text
    assert "torch.nn.modules.module" not in text
    assert "Namespace" not in text
    assert len(text.splitlines()) < 420


@pytest.mark.parametrize("key", ["selector", "partition", "model", "local.optimizer", "local.lr_schedule"])
def test_classes_are_listed(key: str, capsys: Any) -> None:
    assert call("train", f"--{key}.help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{key}: one of these, or the import path of another ")
    assert len(lines) > 5


def test_a_class_is_explained(capsys: Any) -> None:
    assert call("train", "--selector.help", "PowD") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("flsel.selectors.powd.PowD ")
    assert "Candidates asked for their loss" in text
    assert "--selector.d D" in text
    assert "a whole number >= 1" in text
    assert "or null; default: null)" in text
    assert call("train", "--model.help", "mymodels.Net") == 0
    text = capsys.readouterr().out
    assert "--model.width WIDTH" in text
    assert text.count("(a whole number; required)") == 1
    assert call("train", "--selector.help", "Powd") == 2
    assert "did you mean PowD?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--selector", "PowD", "--local.optimizer", "Adam", "--partition", "Shards", "--data.name", "mnist"],
        [
            "--local.lr_schedule",
            "StepLR",
            "--local.lr_schedule.step_size",
            "5",
            "--quiet",
            "--clients",
            "null",
        ],
        ["--callbacks", "[lightning.pytorch.callbacks.Timer]", "--track.tags", "[a, b]"],
    ],
)
def test_the_printed_config_is_a_config(arguments: list[str], tmp_path: Path, capsys: Any) -> None:
    assert call("train", "--print_config", *arguments) == 0
    printed = capsys.readouterr().out
    assert "# Communication rounds (T). (a whole number in [1, 100,000,000]; default: 100)" in printed
    (tmp_path / "c.yaml").write_text(printed)
    assert call("train", "--config", "c.yaml", "--print_config") == 0
    assert capsys.readouterr().out == printed
    settings = yaml.safe_load(printed)
    assert settings.keys() == RunConfig.from_file(tmp_path / "c.yaml").to_dict().keys()


def test_the_printed_config_is_that_of_all_arguments(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "c.yaml").write_text("rounds: 7\n")
    assert call("train", "--print_config", "--config", "c.yaml", "--clients_per_round", "3") == 0
    settings = yaml.safe_load(capsys.readouterr().out)
    assert (settings["rounds"], settings["clients_per_round"]) == (7, 3)
    assert call("train", "--print_config=xyzzy") == 2
    assert "xyzzy" in capsys.readouterr().err


def test_data_takes_the_same_settings_and_shows_the_partition(tmp_path: Path, capsys: Any) -> None:
    assert call("data", *TINY, "--picture", "here.png") == 0
    text = capsys.readouterr().out
    assert "examples at 4 clients" in text
    assert (tmp_path / "here.png").read_bytes().startswith(b"\x89PNG")
    assert os.listdir(tmp_path) == ["here.png"]
    assert call("data", "--help") == 0
    assert "--picture" in capsys.readouterr().out


def test_classes_of_the_current_folder_are_found_and_hide_nothing(tmp_path: Path) -> None:
    (tmp_path / "ownclasses.py").write_text(
        "from torch import nn\n\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Linear(8, 4))\n"
    )
    (tmp_path / "random.py").write_text("raise SystemExit('this file took the place of a library')\n")
    program = Path(sys.executable).with_name("flsel")
    command = [str(program), "train", *TINY, "--model", "ownclasses.Net"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "flsel: local.backend auto: compiled\n"
    assert "wrote runs/run/summary.json" in done.stdout


@pytest.mark.parametrize(
    ("backend", "precision"),
    [("sequential", "32-true"), ("compiled", "32-true"), ("sequential", "bf16-mixed")],
)
def test_a_module_that_logs_trains_and_libraries_are_silent(
    backend: str, precision: str, tmp_path: Path, capfd: Any
) -> None:
    options = ["--local.backend", backend, "--precision", precision, "--quiet"]
    assert call("train", *TINY, "--model", "mymodels.Logs", *options) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("model", ["mymodels.make_net", "mymodels.Activated", "MLP"])
def test_models_of_all_kinds_train_and_come_back(model: str, tmp_path: Path) -> None:
    assert call("train", *TINY, "--model", model, "--quiet") == 0
    assert call("train", "--resume", "runs/run") == 0


# --- resume -----------------------------------------------------------------------------------------------


@pytest.mark.figures
def test_a_finished_run_is_shown_again_and_left_alone(tmp_path: Path, capsys: Any) -> None:
    assert call("train", *TINY) == 0
    assert {path.name for path in (tmp_path / "runs/run").glob("*.png")} == {"curves.png", "partition.png"}
    table = capsys.readouterr().out.partition("metric")[2]
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    for words in (["--resume", "runs/run"], ["--resume", "runs/run/"], ["--resume=runs/run"]):
        assert call("train", *words) == 0
        shown = capsys.readouterr()
        assert "flsel: runs/run is finished; nothing is left to resume" in shown.err
        assert shown.out.partition("metric")[2] == table
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--resume"], "--resume takes the folder of a run and no other settings but --rounds"),
        (
            ["--resume", "runs/run", "--seed", "3"],
            "--resume takes the folder of a run and no other settings",
        ),
        (["--resume", "nothere"], "there is no folder nothere; a "),
        (["--resume", "."], ". is not the folder of a run: it holds no config.yaml."),
    ],
)
def test_a_folder_that_cannot_be_resumed(arguments: list[str], sentence: str, capsys: Any) -> None:
    assert call("train", *arguments) == 2
    assert capsys.readouterr().err.startswith(f"flsel: error: {sentence}")


def test_the_config_of_a_run_must_still_be_its_own(tmp_path: Path, capsys: Any) -> None:
    assert call("train", *TINY, "--quiet") == 0
    config = tmp_path / "runs" / "run" / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("seed: 0\n", "seed: 1\n"))
    assert call("train", "--resume", "runs/run") == 2
    assert "belongs to another config than runs/run/config.yaml; restore that file" in capsys.readouterr().err
    config.write_text(text.replace("rounds: 2\n", "roundz: 2\n"))
    assert call("train", "--resume", "runs/run") == 2
    error = "flsel: error: runs/run/config.yaml: there is no setting roundz; did you mean rounds?\n"
    assert capsys.readouterr().err == error
    # How a run is shown may change.
    config.write_text(text.replace("quiet: true\n", "quiet: false\n"))
    assert call("train", "--resume", "runs/run") == 0


def test_a_run_made_in_python_is_resumed_by_the_command_line(tmp_path: Path, capsys: Any) -> None:
    from functools import partial

    from runs import settings
    from torch import optim

    from flsel.config.groups import LocalConfig, OutputConfig
    from flsel.execution.run import run
    from flsel.models import MLP
    from flsel.objectives import FedProx

    run(
        settings(
            tmp_path,
            rounds=2,
            model=partial(MLP, hidden=(3,)),
            objective=FedProx(mu=1),
            local=LocalConfig(steps=1, optimizer=partial(optim.Adam, lr=0.01)),
            output=OutputConfig(dir="runs", name="run"),
        )
    )
    (tmp_path / "runs" / "run" / "summary.json").unlink()
    assert call("train", "--resume", "runs/run") == 0
    assert json.loads((tmp_path / "runs" / "run" / "summary.json").read_text())["rounds"] == 2


# --- the system says no -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "x/y"), "x/y: no space left on device."),
        (PermissionError(errno.EACCES, "Permission denied", "x/y"), "x/y: permission denied."),
        (OSError("odd"), "odd."),
    ],
)
def test_an_error_of_the_system_is_one_sentence(
    error: OSError, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    # A mock's frames are no user's.
    monkeypatch.setattr("flsel.commands.train.main", Mock(side_effect=error))
    assert call("train") == 2
    assert capsys.readouterr().err == f"flsel: error: {sentence}\n"


def test_a_notebooks_choice_of_pictures_is_left_aside(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("MPLBACKEND", "nonsense")
    assert main(["configs"]) == 0
    assert "MPLBACKEND" not in os.environ


def test_a_file_that_an_installed_module_hides_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("selectors.py").write_text("from flsel.selectors import Uniform\n\nclass Mine(Uniform): ...\n")
    assert main(["train", "--selector", "selectors.Mine"]) == 2
    assert capsys.readouterr().err == (
        "flsel: error: selector cannot be selectors.Mine: settings call nothing of Python's standard "
        "library; call it in a function of your own, and name that. Your selectors.py is not seen beside the "
        "installed module of that name: rename it.\n"
    )


def test_ctrl_c_before_a_run_says_how_runs_go_on(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def stop(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("flsel.commands.train.main", stop)
    assert call("train") == 130
    assert "flsel train --resume RUN" in capsys.readouterr().err


def test_output_that_nobody_reads_ends_quietly() -> None:
    command = f"{sys.executable} -m flsel train --selector.help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["train", "--resume", ""], "--resume"), (["tune", "--resume", ""], "--resume"),
        (["compare", "--variants="], "--variants"), (["configs", ""], "an argument"),
        (["train", "--output.dir", "", "--rounds", "1"], "--output.dir"),
        (["tune", "--config", "quickstart", "--from", ""], "--from"),
    ],
)  # fmt: skip
def test_empty_words_are_refused(arguments: list[str], what: str, capsys: Any) -> None:
    assert call(*arguments) == 2
    assert f"error: {what} must not be an empty text: give a value" in capsys.readouterr().err
    assert not [*Path().iterdir()]


def test_bytes_that_are_no_text_are_refused(capsys: Any) -> None:
    assert call("train", *TINY, "--output.name", "\udcff") == 2
    assert capsys.readouterr().err.startswith("flsel: error: '\\udcff' is no text in this locale: give it")
    assert not Path("runs").exists()


def test_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["train"]) == 2
    assert "is gone; change to one that exists" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)


def test_debug_shows_where_an_error_was_raised(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "breaks.py").write_text("raise SystemExit('no')\n")
    assert call("train", "--model", "breaks.Net") == 2
    said = capsys.readouterr().err
    assert "breaks.py, line 1" in said
    assert said.count("\n") == 1
    assert call("train", "--debug", "--model", "breaks.Net") == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith(said)


def test_name_is_the_name_of_the_run(tmp_path: Path) -> None:
    assert call("train", *TINY, "--name", "other", "--quiet") == 0
    assert (tmp_path / "runs/other/summary.json").is_file()
