"""Every shipped config parses, says what to expect, and runs a round."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flsel.commands.argv import parse
from flsel.commands.cli import main
from flsel.config import RunConfig
from flsel.config.groups import OutputConfig
from flsel.data.generated import households, write_play
from flsel.data.sources import load_source
from flsel.errors import UserError
from flsel.execution.run import run
from flsel.files.shipped import find, shipped
from flsel.models.texts import lora_causal
from flsel.runner.result import Result

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT / "../shared/data"
PAPERS = sorted((ROOT / "configs/papers").rglob("*.yaml"))
CONFIGS = sorted((ROOT / "configs/runs").glob("*.yaml"))
# Folder of a dataset below its root; number and shape of the images that stand in for it.
IMAGES = {
    "mnist": ("MNIST", 10_000, (28, 28)),
    "fashion_mnist": ("FashionMNIST", 10_000, (28, 28)),
    "cifar10": ("cifar-10-batches-py", 2_000, (32, 32, 3)),
}

each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


def one_round(config: RunConfig, folder: Path, **data: str) -> Result:
    return run(
        replace(
            config,
            rounds=1,
            data=replace(config.data, **data),
            output=OutputConfig(dir=str(folder)),
            accelerator="cpu",
            quiet=True,
        )
    )


def test_the_named_configs_are_there():
    named = {"quickstart", "fashion_mnist", "mnist", "cifar10", "shakespeare", "lora", "regression"}
    assert named <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize("file", shipped(), ids=lambda file: f"{file.kind}-{file.name}")
def test_the_first_line_is_a_title(file):
    assert file.path.read_text().startswith("# ")
    assert file.about.endswith(".")
    assert 20 < len(file.about) < 120


def test_names_are_unique_and_found():
    files = shipped()
    assert len({file.name for file in files}) == len(files) == len([*(ROOT / "configs").rglob("*.yaml")])
    assert all(find(file.name, file.kind) == file.path for file in files)
    assert {"quickstart", "papers/fedgs/synthetic"} <= {file.name for file in shipped("runs", "papers")}


def test_a_file_of_ones_own_wins_over_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("quickstart").mkdir()
    assert find("quickstart", "runs") == ROOT / "configs/runs/quickstart.yaml"
    Path("mnist").write_text("rounds: 3\n")
    assert find("mnist", "runs") == Path("mnist")
    assert parse([("config", "mnist")]).rounds == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("quickstrat", "there is no such file; did you mean quickstart, which flsel brings along?"),
        ("configs/runs/mnist.yaml", "there is no such file; did you mean mnist, which flsel brings along?"),
        ("papers/fedgs/sintetic", "there is no such file; did you mean papers/fedgs/synthetic, which"),
        ("powd", "there is no such file, and flsel brings none of that name along (flsel configs lists"),
        ("elsewhere/mine.yaml", "there is no such file."),
    ],
)
def test_a_name_that_is_nothing_is_one_sentence(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        find(name, "runs", "papers")
    assert said in str(refused.value)


def test_the_command_lists_and_prints(capsys):
    assert main(["configs"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {file.name} " in listed and file.about in listed for file in shipped())
    assert main(["configs", "hics"]) == 0
    assert capsys.readouterr().out == (ROOT / "configs/search/hics.yaml").read_text()
    assert main(["configs", "hicks"]) == 2
    assert "hicks: there is no such file; did you mean hics" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x7fELF\xff\x00\x01", "the file must be YAML text, and it is not text."),
        (b"# a list\n- 1\n", "the file must be a mapping of settings, such as `rounds: 100`, got a list."),
        (b"rounds: 3\x1b[2J\n", "the file is not valid YAML: it holds a control character."),
        (None, "the file is a pipe or a device; give a regular one."),
    ],
)
def test_what_is_no_file_of_settings_is_not_printed(content, said, tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    assert main(["configs", str(file)]) == 2
    assert capsys.readouterr() == ("", f"flsel: error: {file}: {said}\n")
    assert main(["configs", "/dev/zero"]) == 2
    assert (
        capsys.readouterr().err
        == "flsel: error: /dev/zero: the file is a pipe or a device; give a regular one.\n"
    )


@each_config
def test_first_lines_say_what_to_expect(path):
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert comments[1].startswith("# Expected: ")
    assert any(line.startswith("# Cost: ") for line in comments)
    assert "TODO" not in path.read_text()


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_papers_config_says_what_it_is(path):
    lines = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert len(lines) < 8
    assert any(line.startswith("# Paper") for line in lines) or path.stem == "fashion_mnist_adam"
    config = RunConfig.from_file(path)
    (about,) = (line for line in lines if line.startswith("# Run: "))
    assert about.endswith("; seeds 1, 2, 3 (--seed).")
    described = config.to_dict()
    parts = (described["partition"], described["model"], described["local"]["optimizer"])
    names = ", ".join(part["class_path"].rpartition(".")[2] for part in parts)
    assert about.startswith(f"# Run: {names} ")
    assert (
        f", {config.rounds} rounds, {config.clients_per_round} of {config.clients or 'all'} clients;" in about
    )


@each_config
def test_runs_a_round(path, tmp_path):
    """On generated data, or random images of the dataset's shape."""
    config = RunConfig.from_file(path)
    if path.stem == "lora":
        pytest.importorskip("transformers")
        pytest.importorskip("peft")
    data = {"root": str(tmp_path / "absent")}
    if config.data.name in IMAGES:
        _, count, shape = IMAGES[config.data.name]
        rng = np.random.default_rng(0)
        arrays = {
            "x_train": rng.integers(0, 256, (count, *shape), dtype=np.uint8),
            "y_train": np.arange(count) % 10,
            "x_test": rng.integers(0, 256, (100, *shape), dtype=np.uint8),
            "y_test": np.arange(100) % 10,
        }
        np.savez(tmp_path / "images.npz", **arrays)
        data = {"name": "npz", "path": str(tmp_path / "images.npz")}
    metrics = one_round(config, tmp_path, **data).final
    assert np.isfinite(metrics["test/loss"])


def test_cifar10_is_cropped_and_flipped():
    config = RunConfig.from_file(ROOT / "configs/runs/cifar10.yaml")
    assert [type(made()).__name__ for made in config.data.augment] == ["RandomCrop", "RandomHorizontalFlip"]


def test_shakespeare_is_read_where_it_is_and_generated_where_it_is_not(tmp_path, caplog):
    config = RunConfig.from_file(ROOT / "configs/runs/shakespeare.yaml")
    generated = load_source(replace(config.data, root=str(tmp_path)), clients=None, seed=1)
    assert generated.name == "generated_play"
    assert f"there is no folder {tmp_path / 'shakespeare'} with LEAF's train/*.json" in caplog.text
    assert generated.train.x.shape[1:] == (20,)
    # An example's label is the character after it, three characters on in the next one.
    x, y = generated.train.x, generated.train.y
    assert torch.equal(x[1, -3], y[0])
    assert set(np.unique(generated.owner)) == set(np.unique(generated.test_owner)) == set(range(20))

    write_play(tmp_path / "shakespeare")
    caplog.clear()
    read = load_source(replace(config.data, root=str(tmp_path)), clients=None, seed=1)
    assert read.name == "shakespeare"
    assert caplog.text == ""
    assert torch.equal(read.train.x, x)
    with pytest.raises(UserError, match=r"absent/train must hold LEAF files"):
        load_source(replace(config.data, path=str(tmp_path / "absent")), clients=None, seed=1)


def test_a_household_predicts_its_next_hour(tmp_path):
    train, test = households(clients=3, days=4)
    x, y = train.tensors
    assert x.shape == (3 * 24, 24)
    assert torch.equal(x[1, -1], y[0])
    assert len(test) == 3 * 48
    result = one_round(RunConfig.from_file(ROOT / "configs/runs/regression.yaml"), tmp_path)
    assert (result.score.column, result.score.better) == ("test/R2Score", "max")


def test_lora_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        UserError, match=r'needs the packages transformers and peft .*pip install "flsel\[lora'
    ):
        lora_causal()


@pytest.mark.real_data
@pytest.mark.parametrize(
    "path",
    [path for path in CONFIGS if RunConfig.from_file(path).data.name in IMAGES],
    ids=lambda path: path.stem,
)
def test_runs_a_round_on_real_data(path, tmp_path):
    config = RunConfig.from_file(path)
    folder = REAL / IMAGES[config.data.name][0]
    if not folder.is_dir():
        pytest.skip(f"no {config.data.name} in ../shared/data")
    metrics = one_round(config, tmp_path, root=str(REAL)).final
    assert 0 < metrics["test/accuracy"] < 1
