"""Jobs by GPU on a cluster of Ray that was told of two GPUs which are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HEAD = """
import ray
made = ray.init(num_cpus=8, num_gpus=2, include_dashboard=False, object_store_memory=100 * 2**20)
print(made.address_info["gcs_address"], flush=True)
input()
"""
# A run that waits in its first round until so many run, and writes what Ray gave it.
WHERE = """
import json, os, time
from pathlib import Path

from flsel.selectors import Uniform

HERE = Path(__file__).parent


class Where(Uniform):
    def __init__(self, beside: int = 1):
        super().__init__()
        self.beside = beside

    def select(self, view):
        if view.round == 0:
            (HERE / f"began-{os.getpid()}").touch()
            until = time.monotonic() + 200
            while len(list(HERE.glob("began-*"))) < self.beside and time.monotonic() < until:
                time.sleep(0.05)
            found = {"gpus": os.environ["CUDA_VISIBLE_DEVICES"], "beside": len(list(HERE.glob("began-*")))}
            (HERE / f"told-{os.getpid()}.json").write_text(json.dumps(found))
        return super().select(view)
"""
SMALL = "--rounds 2 --clients 6 --clients_per_round 2 --data.validation 0.2 --quiet"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", HEAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, env=environment,
    ) as head:  # fmt: skip
        assert head.stdout is not None
        yield head.stdout.readline().strip()
        head.communicate("\n", timeout=100)


def flsel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "where.py").write_text(WHERE)
    return subprocess.run(
        [sys.executable, "-m", "flsel", *words], cwd=folder, capture_output=True, text=True, timeout=500,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def told(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in folder.glob("told-*.json")]


def test_two_trials_share_one_gpu_at_a_time(tmp_path: Path, address: str) -> None:
    space = "local.batch_size: {type: int, low: 5, high: 20}\n"
    (tmp_path / "space.yaml").write_text(space)
    done = flsel(
        tmp_path, "tune", *SMALL.split(), "--selector", "where.Where", "--selector.beside", "2",
        "--space", "space.yaml", "--trials", "2", "--gpus", "0.5", "--scheduler", "none",
        "--address", address, "--name", "half",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, other = told(tmp_path)
    assert one == other
    assert (len(str(one["gpus"])), one["beside"]) == (1, 2)


def test_two_runs_have_a_gpu_each(tmp_path: Path, address: str) -> None:
    done = flsel(
        tmp_path, "compare", *SMALL.split(), "--selectors", "where.Where:beside=2", "--seeds", "2",
        "--max-concurrent", "2", "--gpus", "1", "--address", address, "--name", "whole",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = told(tmp_path)
    assert {str(each["gpus"]) for each in found} == {"0", "1"}
    assert [each["beside"] for each in found] == [2] * 2


def test_more_gpus_than_there_are_is_one_sentence(tmp_path: Path, address: str) -> None:
    done = flsel(
        tmp_path, "compare", *SMALL.split(), "--selectors", "Uniform,PowD", "--max-concurrent", "2",
        "--gpus", "5", "--address", address,
    )  # fmt: skip
    assert done.returncode == 2
    assert "(1 CPUs, 5 GPUs for a job; there is 8 CPUs, 2 GPUs, " in done.stderr
