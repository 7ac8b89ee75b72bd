"""Every shipped config parses, says what to expect, and runs a round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flsel.config import RunConfig
from flsel.config.describe import describe
from flsel.config.groups import OutputConfig
from flsel.config.parser import parse_file
from flsel.runner.play import run

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


def one_round(config: RunConfig, folder: Path, **data: str) -> dict[str, float]:
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
    assert {"quickstart", "fashion_mnist", "mnist", "cifar10"} <= {path.stem for path in CONFIGS}


@each_config
def test_first_lines_say_what_to_expect(path):
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert comments[0].startswith("# Expected: ")
    assert any(line.startswith("# Cost: ") for line in comments)
    assert "TODO" not in path.read_text()


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_papers_config_says_what_it_is(path):
    lines = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert len(lines) < 8
    assert any(line.startswith("# Paper") for line in lines) or path.stem == "fashion_mnist_adam"
    config = parse_file(path)
    (about,) = (line for line in lines if line.startswith("# Run: "))
    assert about.endswith("; seeds 1, 2, 3 (--seed).")
    described = describe(config)
    parts = (described["partition"], described["model"], described["local"]["optimizer"])
    names = ", ".join(part["class_path"].rpartition(".")[2] for part in parts)
    assert about.startswith(f"# Run: {names} ")
    assert f", {config.rounds} rounds, {config.budget} of {config.clients or 'all'} clients;" in about


@each_config
def test_runs_a_round(path, tmp_path):
    """On generated data, or random images of the dataset's shape."""
    config = parse_file(path)
    data = {}
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
    metrics = one_round(config, tmp_path, **data)
    assert np.isfinite(metrics["test/loss"])


@pytest.mark.real_data
@pytest.mark.parametrize(
    "path", [path for path in CONFIGS if path.stem != "quickstart"], ids=lambda path: path.stem
)
def test_runs_a_round_on_real_data(path, tmp_path):
    config = parse_file(path)
    folder = REAL / IMAGES[config.data.name][0]
    if not folder.is_dir():
        pytest.skip(f"no {config.data.name} in ../shared/data")
    metrics = one_round(config, tmp_path, root=str(REAL))
    assert 0 < metrics["test/accuracy"] < 1
