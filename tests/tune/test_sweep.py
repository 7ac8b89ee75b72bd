"""Whole sweeps, as from the command line: Ray, concurrent trials, kills, failures, trackers."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from jobs import without_ray
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from processes import PLUGIN, eventually, family, words_of
from wandb_reader import read_run

from flsel.commands.cli import main
from flsel.config import RunConfig
from flsel.execution.on_ray.cluster import started
from flsel.execution.run import run

CONFIG = """
seed: 3
rounds: 12
clients: 8
clients_per_round: 3
data: {name: npz, path: points.npz, validation: 0.2, server: 0.1}
partition: {class_path: Dirichlet, init_args: {alpha: 0.5}}
local: {batch_size: 5, steps: 3, optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}}
selector: {class_path: HiCS}
"""
SPACE = """
selector: {type: choice, values: [HiCS, FedPNS]}
selector.temperature: {type: loguniform, low: 1.0e-3, high: 10.0, when: {selector: HiCS}}
selector.alpha: {type: uniform, low: 1.0, high: 3.0, when: {selector: FedPNS}}
local.optimizer.lr: {type: loguniform, low: 1.0e-4, high: 0.3}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset, a config, a space and a selector, as a user has them."""
    folder = tmp_path_factory.mktemp("sweeps")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 600)
    x = (rng.normal(size=(4, 6))[y] + rng.normal(size=(600, 6))).astype(np.float32)
    np.savez(folder / "points.npz", x_train=x[:500], y_train=y[:500], x_test=x[500:], y_test=y[500:])
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "space.yaml").write_text(SPACE)
    # It also ends by SIGTERM, as where a cluster sends that to all processes.
    dies = "os._exit(1) if len(left) < 2 else os.kill(os.getpid(), 15)"
    (folder / "fragile.py").write_text(PLUGIN.replace("os._exit(1)", dies))
    return folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flsel", "tune", *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}


def tune(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=home, env=environment(), capture_output=True, text=True, timeout=500
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "trials.json").read_text())
    return found


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[None]:
    """A cluster that several sweeps of this process use, with the modules in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.chdir(home)
        with started(None, 0):
            yield


@pytest.fixture(scope="module")
def sweep(home: Path) -> tuple[Path, str]:
    """A sweep of two trials at a time under two seeds, tracked by W&B, stopped by ASHA."""
    done = tune(
        home, "--config", "config.yaml", "--space", "space.yaml", "--trials", "8", "--seeds", "[3,4]",
        "--max-concurrent", "2", "--grace-rounds", "2", "--name", "first", "--track.tracker", "wandb",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return home / "sweeps" / "first", done.stdout


def test_every_trial_is_accounted_for(sweep):
    folder, said = sweep
    found = rows(folder)
    assert [row["trial"] for row in found] == list(range(8))
    assert {row["status"] for row in found} == {"complete", "pruned"}
    for row in found:
        assert (row["round"] == 12) == (row["status"] == "complete")
        assert len(row["seeds"]) == 2
        assert row["validation/accuracy"] == pytest.approx(np.mean(row["seeds"]))
        assert row["spread"] == pytest.approx(np.std(row["seeds"], ddof=1))
        for seed in (3, 4):
            assert (folder / f"trials/{row['trial']:04d}/seed{seed}/metrics.csv").is_file()
    # The config's own settings first, with a temperature that the space cannot hold; then the other class's.
    assert found[0]["settings"] == {"selector": "HiCS", "local.optimizer.lr": 0.1}
    assert found[1]["settings"] == {"selector": "FedPNS", "selector.alpha": 2.0, "local.optimizer.lr": 0.1}
    assert "8/8 done" in said
    assert not (folder / ".ray").exists()


def test_the_tables_agree_with_the_study(sweep):
    folder, _ = sweep
    with open(folder / "trials.csv", newline="") as stream:
        table = list(csv.DictReader(stream))
    study = optuna.load_study(
        study_name="first", storage=JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    )
    assert [trial.state.name.lower() for trial in study.trials] == [row["status"] for row in table]
    best = max(row["validation/accuracy"] for row in rows(folder) if row["status"] == "complete")
    assert study.best_value == best
    for name in ("curves", "history", "slices", "parallel"):
        assert (folder / f"figures/{name}.png").stat().st_size > 5000


def test_the_best_config_reproduces_the_best_trial(sweep, tmp_path, monkeypatch):
    folder, _ = sweep
    monkeypatch.chdir(folder.parents[1])
    best = max(
        (row for row in rows(folder) if row["status"] == "complete"), key=lambda r: r["validation/accuracy"]
    )
    (tmp_path / "best.yaml").write_text((folder / "best.yaml").read_text())
    described = yaml.safe_load((folder / "best.yaml").read_text())
    described["output"] |= {"dir": str(tmp_path), "name": "again"}
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(described))
    assert run(RunConfig.from_file(tmp_path / "best.yaml")).final["validation/accuracy"] == best["seeds"][0]


def test_trials_and_the_sweep_are_wandb_runs(sweep):
    folder, _ = sweep
    runs = [read_run(path) for path in folder.glob("trials/*/wandb/offline-run-*/*.wandb")]
    assert sorted(run.name for run in runs) == [f"first-{n:04d}" for n in range(8)]
    for row, found in zip(rows(folder), sorted(runs, key=lambda run: run.name), strict=True):
        assert (found.group, found.job_type, found.exit_code) == ("first", "trial", 0)
        assert set(found.tags) == {row["settings"]["selector"], "npz"}
        assert found.config["selector"] == row["settings"]["selector"]
        last = [item for item in found.history if "tune/validation/accuracy" in item][-1]
        assert (last["round"], last["tune/validation/accuracy"]) == (row["round"], row["validation/accuracy"])
        measured = [item["round"] for item in found.history if "validation/loss" in item]
        assert measured == list(range(row["round"] + 1))
        assert not [name for item in found.history for name in item if name.startswith("test/")]
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    own = read_run(path)
    assert (own.group, own.job_type) == ("first", "sweep")
    assert own.summary["trials/complete"] == sum(row["status"] == "complete" for row in rows(folder))
    assert [item["sweep/trials/nrows"] for item in own.history if "sweep/trials/nrows" in item] == [8]


def test_several_metrics_are_optimised_together(home, monkeypatch, capsys, cluster):
    metrics = ["validation/accuracy", "ledger/bytes_up"]
    (home / "candidates.yaml").write_text("selector.d: {type: int, low: 3, high: 8}\n")
    monkeypatch.chdir(home)
    words = [
        "tune", "--config", "config.yaml", "--selector", "PowD", "--space", "candidates.yaml",
        "--trials", "3", "--metric", ", ".join(metrics), "--scheduler", "none", "--rounds", "4",
        "--name", "several",
    ]  # fmt: skip
    assert main(words) == 0
    said = capsys.readouterr().out
    folder = home / "sweeps/several"
    without_ray(monkeypatch)
    assert main(["tune", "--resume", "sweeps/several", "--trials", "4"]) == 0
    found = rows(folder)
    assert [row["status"] for row in found] == ["complete"] * 4
    both = [(row["validation/accuracy"], -row["ledger/bytes_up"]) for row in found]
    front = [n for n, one in enumerate(both) if not any(beats(other, one) for other in both)]
    study = optuna.load_study(
        study_name=None, storage=JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    )
    assert sorted(trial.number for trial in study.best_trials) == front
    assert f"# Trial {front[0]} of {folder}: validation/accuracy {both[front[0]][0]!r}, ledger/bytes_up" in (
        (folder / "best.yaml").read_text()
    )
    drawn = {path.stem for path in (folder / "figures").iterdir()}
    assert drawn == {"pareto", *(f"{name}-{n}" for name in ("history", "slices", "parallel") for n in (1, 2))}
    assert all(f"{metric} " in said for metric in metrics)


def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


def comparable(folder: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows(folder)]


def test_a_sweep_whose_ray_daemon_died_goes_on_and_ends_as_one_without_ray(
    home, tmp_path, monkeypatch, cluster
):
    """It needs no home, no temporary folder with a short name, and asks no cluster of others."""
    (tmp_path / ("t" * 80)).mkdir()
    hostile = {"RAY_ADDRESS": "127.0.0.1:9", "HOME": "/nonexistent", "TMPDIR": str(tmp_path / ("t" * 80))}
    common = [
        "--config", "config.yaml", "--space", "space.yaml", "--rounds", "40", "--grace-rounds", "8",
        "--max-concurrent", "1", "--trials", "3",
    ]  # fmt: skip
    folder = home / "sweeps/broken"
    metrics = folder / "trials/0000/seed3/metrics.csv"
    process = subprocess.Popen(
        command(*common, "--name", "broken"), cwd=home, env=environment() | hostile, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert eventually(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 10)
    members = family(process.pid)
    (daemon,) = [pid for pid in members if "/raylet/raylet " in words_of(pid)]
    os.kill(daemon, signal.SIGKILL)
    _, said = process.communicate(timeout=500)
    assert process.returncode in (1, -signal.SIGKILL)
    assert said.endswith(
        "flsel: error: Ray's daemon died, perhaps for lack of memory; "
        "continue with: flsel tune --resume sweeps/broken\n"
    )
    assert not set(said.splitlines()[:-1]) - {"flsel: local.backend auto: compiled"}
    assert eventually(lambda: not any(map(words_of, members))), [words_of(pid) for pid in members]
    monkeypatch.chdir(home)
    assert main(["tune", "--resume", "sweeps/broken"]) == 0
    without_ray(monkeypatch)
    assert main(["tune", *common, "--name", "whole"]) == 0
    assert comparable(folder) == comparable(home / "sweeps/whole")
    assert (folder / "best.yaml").read_text().partition("seed:")[2] == (
        (home / "sweeps/whole/best.yaml").read_text().partition("seed:")[2]
    )


def test_dead_processes_are_replaced_and_hopeless_trials_marked(home, monkeypatch, capsys, cluster):
    (home / "deaths.yaml").write_text(
        "selector.deaths: {type: choice, values: [1, 3]}\n"
        "local.optimizer.weight_decay: {type: choice, values: [0.0, 1.0e+30]}\n"
    )
    monkeypatch.chdir(home)
    words = [
        "tune", "--config", "config.yaml", "--selector", "fragile.Fragile", "--space", "deaths.yaml",
        "--sampler", "grid", "--trials", "20", "--retries", "1", "--scheduler", "none", "--name", "fragile",
    ]  # fmt: skip
    assert main(words) == 0
    said = capsys.readouterr()
    found = {
        (row["settings"]["selector.deaths"], row["settings"]["local.optimizer.weight_decay"]): row
        for row in rows(home / "sweeps/fragile")
    }
    statuses = {key: row["status"] for key, row in found.items()}
    assert statuses == {
        (1, 0.0): "complete",
        (3, 0.0): "failed",
        (1, 1e30): "diverged",
        (3, 1e30): "diverged",
    }
    assert "its process died" in found[3, 0.0]["error"]
    assert "its process died at round 3" in said.err
    assert "Traceback" not in said.out + said.err
    # The marks of deaths are all there, so that this process survives.
    monkeypatch.syspath_prepend(home)
    undisturbed = run(RunConfig.from_file(home / "sweeps/fragile/best.yaml"))
    assert found[1, 0.0]["seeds"] == [undisturbed.final["validation/accuracy"]]


def test_nothing_is_started_without_a_cluster(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    arguments = ["--config", "config.yaml", "--space", "space.yaml", "--name", "none"]
    assert main(["tune", *arguments, "--address", "127.0.0.1:9"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "address 127.0.0.1:9 is not a Ray cluster that answers" in line
    assert not (home / "sweeps" / "none").exists()
