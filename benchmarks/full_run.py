"""The Fashion-MNIST run of the FedCor paper as a user starts it, and how long ``flsel --help`` takes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from measure import ROOT, options, spread, table, verdict

CONFIG = ROOT / "configs" / "runs" / "fashion_mnist.yaml"


@dataclass(frozen=True)
class Finished:
    """A command's wall time in seconds and its largest resident memory in GB (10^9 bytes)."""

    seconds: float
    memory: float


def command(arguments: Sequence[str], threads: int) -> Finished:
    """Run ``flsel`` with some arguments to its end."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [str(Path(sys.executable).with_name("flsel")), *arguments],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )
    # A child's high-water mark begins with its parent's, which is why this script imports no torch.
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    if status != 0:
        raise SystemExit(f"flsel {' '.join(arguments)} failed.")
    return Finished(seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9)


def train(chosen: argparse.Namespace, rounds: int) -> Finished:
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["train", "--config", str(CONFIG), "--rounds", str(rounds), "--output.dir", folder]
        arguments += ["--accelerator", chosen.accelerator, "--data.root", chosen.data_root]
        return command(arguments, chosen.threads)


def main() -> None:
    chosen = options(__doc__)
    help_times = [command(["--help"], chosen.threads).seconds for _ in range(11)]
    rows = [
        [
            "`flsel --help`",
            "wall time",
            spread(help_times, " s"),
            "<= 0.5 s",
            verdict(median(help_times), 0.5),
        ]
    ]
    if chosen.data_root is None:
        print("The run was left out: it needs --data-root or FLSEL_DATA with FashionMNIST.\n")
    else:
        rounds = 20 if chosen.quick else 500
        run, name = train(chosen, rounds), f"`{CONFIG.name}`, {rounds} rounds"
        # A short run says nothing about the limits of the long one.
        time_limit = ["", ""] if chosen.quick else ["<= 180 s", verdict(run.seconds, 180)]
        rows.append([name, "wall time", f"{run.seconds:.1f} s", *time_limit])
        rows.append([name, "peak memory", f"{run.memory:.2f} GB", "<= 1.5 GB", verdict(run.memory, 1.5)])
    print(table(("command", "quantity", "measured", "target", ""), rows))


if __name__ == "__main__":
    main()
