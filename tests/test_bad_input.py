"""Bad input through the program: one sentence on standard error, exit code 2, nothing left behind."""

# ruff: noqa: E501 (sentences are quoted whole)

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mymodels import CLASSES, INPUTS
from runs import left_behind, same
from test_cli import TINY, call

from flsel.runner.digest import digest

ARRAYS = ["--data.name", "npz", "--data.path", "data.npz", "--partition", "IID"]

pytestmark = pytest.mark.usefixtures("here", "figures_where_they_are_tested")


def fails(capfd: Any, *arguments: str) -> str:
    """The sentence with which a run is refused; it must be alone and leave no run behind."""
    runs = Path("runs")
    before = sorted(runs.iterdir()) if runs.is_dir() else []
    capfd.readouterr()
    assert call("train", *arguments) == 2
    error = capfd.readouterr().err
    assert "Traceback" not in error
    told = ("flsel: local.backend auto", "flsel: warning: local.backend", "flsel: warning: model ")
    said = [line for line in error.splitlines() if not line.startswith(told)]
    assert len(said) == 1, error
    assert (sorted(runs.iterdir()) if runs.is_dir() else []) == before
    return said[0].removeprefix("flsel: error: ")


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--roundz", "3"], "there is no setting roundz; did you mean rounds?"),
        (["--rounds", "many"], "rounds must be a whole number in [1, 100,000,000], got 'many'."),
        (["--selector", "Powd"], "selector has no class Powd; did you mean PowD? (--selector.help lists them)"),
        (["--rounds", "10000000000000"], "rounds must be a whole number in [1, 100,000,000], got 10000000000000, which take 317 years or more."),
        (["--threads", "10000000000000"], "threads must be a whole number in [1, 1,024] or null, got 10000000000000."),
        (["--clients", "10000000000000"], "data.synthetic with 10,000,000,000,000 clients would take 596,046.4 GiB of memory, and"),
        (["--data.synthetic.classes", "10000000000000"], "data.synthetic with 10,000,000,000,000 classes would take "),
        (["--local.steps", "10000000000000"], "a visit of 10,000,000,000,000 local steps (local.epochs, local.steps, local.batch_size) would take "),
        (["--local.batch_size", "10000000000000"], "a visit of 2 local steps (local.epochs, local.steps, local.batch_size) would take "),
        (["--local.optimizer", "SGD", "--local.optimizer.lr", "1e300"], "local.optimizer: lr must be a finite number of at most 3.4e+38 in size, got 1e+300."),
        (["--server_optimizer.lr", ".inf"], "server_optimizer: lr must be a finite number of at most 3.4e+38 in size, got inf."),
        (["--local.lr_schedule", "ExponentialLR", "--local.lr_schedule.gamma", "1e300"], "local.lr_schedule must keep the learning rate finite and below 3.4e+38 times the first, and in round 1 it is 1e+300 times."),
        (["--output_layer", "nope"], "output_layer must name a layer with a weight of 4 rows, got 'nope'; candidates are "),
        (["--device", "5"], "device must be 0 where the processor trains, got 5."),
        (["--config", "/dev/zero"], "/dev/zero: the file is a pipe or a device; give a regular one."),
        (["--local.batch_size", "0"], "local.batch_size must be a whole number >= 1, got 0."),
        (["--clients_per_round", "5"], "clients_per_round must be at most the number of clients, got clients_per_round 5 of 4."),
        (["--accelerator", "gpu"], "accelerator gpu with device 0 is not usable: "),
        (["--accelerator", "abacus"], "accelerator abacus with device 0 is not usable: "),
        (["--data.name", "nothere.data"], "data.name cannot be nothere.data: there is no module nothere in the current folder or"),
        (["--data.name", "mymodels.nothing"], "data.name cannot be mymodels.nothing: mymodels has no nothing."),
        (["--data.name", "mnist", "--data.root", "."], "mnist not found: searched MNIST/raw; set data.root"),
        (["--clients", "null"], "clients must be at least 1 for synthetic data, got null."),
        (["--local.optimizer", "SGD", "--local.optimizer.lr", "-1"], "local.optimizer SGD cannot be built: Invalid"),
        (["--server_optimizer", "SGD", "--server_optimizer.lr", "-1"], "server_optimizer SGD cannot be built: Inv"),
        (
            ["--local.lr_schedule", "LambdaLR", "--local.lr_schedule.lr_lambda", "os.system"],
            "local.lr_schedule.lr_lambda must be a function, which settings cannot hold, got 'os.system'",
        ),
        (["--local.lr_schedule", "StepLR", "--local.lr_schedule.step_size", "0"], "local.lr_schedule StepLR must step through 2 rounds by itself, and failed in round 0: integer "),
        (["--callbacks", "[{class_path: EarlyStopping, init_args: {monitor: x, mode: y}}]"], "callbacks[0] EarlySt"),
        (["--local.lr_schedule", "ReduceLROnPlateau"], "local.lr_schedule ReduceLROnPlateau must step through 2 rounds by itself, and failed in round 0: "),
        (["--callbacks", "[{class_path: GradientAccumulationScheduler, init_args: {scheduling: {0: 2}}}]"], "callback GradientAccumulationScheduler asks in "),
    ],
)  # fmt: skip
def test_settings(arguments: list[str], sentence: str, capfd: Any) -> None:
    if "gpu" in arguments and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert fails(capfd, *TINY, *arguments).startswith(sentence)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("NoStep", "model NoStep is a LightningModule without a training_step."),
        ("NoParameters", "model must be a torch module with trainable parameters, got NoParameters."),
        (
            "WrongOutput",
            "model WrongOutput must return logits of shape (2, 4) for 2 examples, got (2, 3): set its number of "
            "outputs, such as --model.num_classes 4.",
        ),
        (
            "OneLogit",
            "model OneLogit must return logits of shape (2, 4) for 2 examples, got (2, 1): give it one "
            "output for each class and train it by cross-entropy.",
        ),
        (
            "WrongInput",
            "model WrongInput does not accept inputs of shape (8,): RuntimeError: mat1 and mat2 shapes",
        ),
        ("Fails", "model Fails cannot be built: KeyError: 'no\\nsuch thing' (mymodels.py, line "),
    ],
)
def test_models(model: str, sentence: str, capfd: Any) -> None:
    assert fails(capfd, *TINY, "--model", f"mymodels.{model}").startswith(sentence)


@pytest.mark.parametrize(
    ("selector", "sentence"),
    [
        ("TakesAll", "TakesAll planned 4 paths in round 0; clients_per_round is 2."),
        ("TakesStrangers", "TakesStrangers planned client 4, who is not available in round 0."),
        ("NoPlan", "NoPlan.select must return a Plan, such as Plan.star(clients), got [0]."),
        ("NoWeights", "NoWeights.weigh must return a tensor of 2 weights, got 1.0."),
        ("Peeks", "the selector asked for LABELS without declaring it; add Need.LABELS to its `needs`."),
    ],
)
def test_selectors_that_break_the_contract(selector: str, sentence: str, capfd: Any) -> None:
    assert fails(capfd, *TINY, "--selector", f"mymodels.{selector}") == sentence


# --- data -------------------------------------------------------------------------------------------------


def write_npz(**changes: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.normal(size=(40, INPUTS)).astype(np.float32), "y_train": np.arange(40) % CLASSES}
    arrays |= {"x_test": arrays["x_train"][:9], "y_test": arrays["y_train"][:9]}
    np.savez("data.npz", **(arrays | changes))


def test_an_empty_client(capfd: Any) -> None:
    write_npz()
    said = fails(capfd, *TINY, *ARRAYS, "--partition", "mymodels.LeavesSomeOut")
    assert said.startswith(
        "client 1 has no examples after the partition (3 of 4 clients are empty); lower cl"
    )


# --- checkpoints ------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint() -> Path:
    assert call("train", *TINY, "--quiet") == 0
    return Path("runs/run/checkpoints/last.ckpt")


def test_a_checkpoint_of_other_code(checkpoint: Path, capfd: Any) -> None:
    state = torch.load(checkpoint, weights_only=True)
    state["server"]["model"] = {"gone": torch.zeros(3)}
    del state["sha256"]
    torch.save({**state, "sha256": digest(state)}, checkpoint)
    said = fails(capfd, "--resume", "runs/run", "--rounds", "20")
    assert (
        "does not fit this run (the model's parameters have other names or shapes): restore the mod" in said
    )


# --- disks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["file/runs", "/proc/runs"])
def test_a_folder_that_cannot_be_made(folder: str, capfd: Any) -> None:
    Path("file").write_text("")
    said = fails(capfd, *TINY, "--output.dir", folder)
    assert said.startswith(f"cannot create the run folder {folder}/run: ")
    assert said.endswith("set `output.dir` to a writable folder.")


def test_an_unwritable_picture(capfd: Any) -> None:
    assert call("data", *TINY, "--picture", "/proc/nothere/here.png") == 2
    assert capfd.readouterr().err.startswith("flsel: error: /proc/nothere: ")


def test_labels_that_data_do_not_have(capfd: Any) -> None:
    x, y = np.ones((40, INPUTS), dtype=np.float32), np.ones(40, dtype=np.float32)
    np.savez("data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert call("data", *TINY, *ARRAYS, "--availability", "YMF") == 2
    out, err = capfd.readouterr()
    assert not out
    assert err.startswith("flsel: error: availability YMF needs class labels, groups or strata")
    assert call("data", *TINY, *ARRAYS) == 0
    out = capfd.readouterr().out
    assert "examples" in out
    assert "labels" not in out.partition("targets (")[0]
    assert "are no class labels" in out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Any]:
    """A function that gives ``disk/`` so many KiB; a file system of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def resize(kibibytes: int) -> None:
        mounted = ["-o", f"remount,size={kibibytes}k", str(disk)]
        subprocess.run(["mount", *mounted], check=True, capture_output=True)

    try:
        new = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
        subprocess.run(new, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small file system needs root")
    yield resize
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.figures
def test_a_full_disk_loses_nothing(small_disk: Any, capfd: Any) -> None:
    tiny = [*TINY, "--rounds", "30", "--quiet", "--output.dir", "disk"]
    small_disk(4)
    assert "the disk is full" in fails(capfd, *tiny)
    assert not Path("disk/run").exists()
    # Room for the first rounds, then not.
    small_disk(64)
    assert call("train", *tiny) == 2
    error = capfd.readouterr().err
    assert error.startswith("flsel: error: cannot write disk/run/")
    assert "the disk is full; free some space (a run goes on with --resume)" in error
    assert error.count("\n") == 1
    small_disk(1024)
    assert call("train", "--resume", "disk/run") == 0
    assert call("train", *TINY, "--rounds", "30", "--quiet", "--output.name", "whole") == 0
    assert same(left_behind(Path("disk/run")), left_behind(Path("runs/whole")))


# --- divergence -------------------------------------------------------------------------------------------

OUTLIER = [
    "--data.name", "mymodels.one_outlier", "--data.test", "0.1", "--data.server", "0", "--data.validation", "0",
    "--model", "MLP", "--model.hidden", "[5]", "--clients_per_round", "4", "--local.optimizer", "SGD",
]  # fmt: skip


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
def test_one_client_that_diverges_is_dropped_and_the_run_goes_on(backend: str, capfd: Any) -> None:
    arguments = [*TINY, *OUTLIER, "--local.optimizer.lr", "0.1", "--local.backend", backend]
    assert call("train", *arguments) == 0
    shown = capfd.readouterr()
    for round in (0, 1):
        assert f"flsel: warning: round {round}: dropped the non-finite updates of clients 0\n" in shown.err
    assert json.loads(Path("runs/run/summary.json").read_text())["dropped_updates"] == 2
    assert "dropped updates" in shown.out
    rows = [json.loads(line) for line in Path("runs/run/rounds.jsonl").read_text().splitlines()]
    assert [row["dropped"] for row in rows] == [[0], [0]]
    model = torch.load("runs/run/checkpoints/last.ckpt", weights_only=True)["server"]["model"]
    assert all(value.isfinite().all() for value in model.values())


def test_a_run_whose_every_client_diverges_stops(capfd: Any) -> None:
    said = fails(capfd, *TINY, *OUTLIER, "--local.optimizer.lr", "1e38")
    assert said == (
        "every client of round 0 returned a non-finite model; lower the learning rate of local.optimizer or "
        "check the data."
    )
