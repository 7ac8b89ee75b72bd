"""What a trial of ``flsel tune`` costs beside the run that it is: time, memory, two at a time."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import yaml
from measure import options, spread, table, verdict
from settings import FASHION_MLP, image_data, image_run

from flsel.config import RunConfig
from flsel.config.groups import LocalConfig, OutputConfig
from flsel.execution.run import run

ROUNDS, QUICK_ROUNDS = 200, 20
# Equal work in every trial: a setting that changes nothing.
SPACE = "output.checkpoint_every: {type: choice, values: [10, 11, 12, 13]}\n"


def settings(chosen: argparse.Namespace, folder: Path) -> RunConfig:
    """Return the run: MLP 784-64-30-10, 100 clients, 10 a round, 20 steps of 64, one thread."""
    local = LocalConfig(batch_size=64, steps=20)
    data = replace(image_data(chosen.data_root, folder), validation=0.1)
    config = image_run(FASHION_MLP, data, local, clients=100, accelerator=chosen.accelerator)
    rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    return replace(config, rounds=rounds, threads=1, output=OutputConfig(dir=str(folder / "runs")))


def sweep(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a sweep of four equal trials."""
    command = [str(Path(sys.executable).with_name("flsel")), "tune", "--config", str(folder / "config.yaml")]
    command += ["--space", str(folder / "space.yaml"), "--sampler", "grid", "--scheduler", "none"]
    command += ["--trials", "4", "--name", name, "--folder", str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def ends(folder: Path) -> list[float]:
    """Return when each trial of a sweep ended, by the time of its last file."""
    return sorted(path.stat().st_mtime for path in folder.glob("trials/*/seed*/summary.json"))


def began(folder: Path) -> float:
    """Return when the first trial had built its run."""
    return min(path.stat().st_mtime for path in folder.glob("trials/*/seed*/config.yaml"))


def private_memory() -> dict[int, float]:
    """Return the memory in MB that each trial's process has for itself, by process; Linux only."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            title = (path / "cmdline").read_bytes()
            if not title.startswith(b"ray::") or b"Trainable" not in title:
                continue
            lines = (path / "smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        kilobytes = (int(line.split()[1]) for line in lines if line.startswith("Private_"))
        found[int(path.name)] = sum(kilobytes) * 1024 / 1e6
    return found


def finish(process: subprocess.Popen[bytes]) -> dict[int, float]:
    """Wait for a sweep; return the largest private memory of each of its trials' processes."""
    most: dict[int, float] = {}
    while process.poll() is None:
        for pid, used in private_memory().items():
            most[pid] = max(used, most.get(pid, 0.0))
        time.sleep(0.5)
    if process.returncode != 0:
        raise SystemExit("flsel tune failed.")
    return most


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = settings(chosen, folder)
        (folder / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
        (folder / "space.yaml").write_text(SPACE)
        print(
            table(
                ("quantity", "measured", "target", ""), [*_on_cpus(config, folder), *_on_gpu(chosen, folder)]
            )
        )


def _on_cpus(config: RunConfig, folder: Path) -> list[list[str]]:
    rounds = config.rounds
    gpus = [] if config.accelerator == "cpu" else ["--gpus", "1"]
    plain = []
    for _ in range(3):
        started = time.perf_counter()
        run(config)
        plain.append(time.perf_counter() - started)
    finish(sweep(folder, "one", "--max-concurrent", "1", *gpus))
    one = ends(folder / "one")
    trials = [later - earlier for earlier, later in pairwise(one)]
    extra = median(trials) - median(plain)
    rows = [
        [f"`flsel train`, {rounds} rounds, without imports", spread(plain, " s"), "", ""],
        [f"a trial of {rounds} rounds, from the end of the one before", spread(trials, " s"), "", ""],
        ["a trial's overhead", f"{extra:.2f} s", "<= 1 s", verdict(extra, 1.0)],
        [
            "the same, of the run",
            f"{extra / median(plain):.1%}",
            "<= 10 %",
            verdict(extra / median(plain), 0.1),
        ],
    ]
    if config.accelerator == "cpu" and (os.cpu_count() or 1) > 1:
        memory = finish(sweep(folder, "two", "--max-concurrent", "2"))
        alone = one[-1] - began(folder / "one")
        faster = alone / (ends(folder / "two")[-1] - began(folder / "two"))
        rows.append(
            [
                "two trials at a time: rounds a second",
                f"{faster:.2f} x one",
                ">= 1.7 x",
                verdict(-faster, -1.7),
            ]
        )
        if memory:
            second = median(memory.values())
            rows.append(
                ["a second trial's private memory", f"{second:.0f} MB", "<= 400 MB", verdict(second, 400)]
            )
    return rows


def _on_gpu(chosen: argparse.Namespace, folder: Path) -> list[list[str]]:
    if chosen.accelerator == "cpu":
        return []
    finish(sweep(folder, "quarters", "--gpus", "0.25", "--max-concurrent", "4"))
    alone = ends(folder / "one")[-1] - began(folder / "one")
    together = ends(folder / "quarters")[-1] - began(folder / "quarters")
    return [
        ["four trials on a GPU at 0.25 each: rounds a second", f"{alone / together:.2f} x one by one", "", ""]
    ]


if __name__ == "__main__":
    main()
