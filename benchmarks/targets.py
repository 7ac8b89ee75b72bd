"""The targets of speed, on an idle machine with two cores, in about ten minutes; prints Markdown.

python benchmarks/targets.py --data-root DATA            # everything
python benchmarks/targets.py --data-root DATA --quick    # do all parts run?

Rounds of local training take turns in one process (``trainers.py``), whole commands with those of an older
commit, which is checked out beside this for the while.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from measure import ROOT, ratios, spread, table, verdict

from flsel.runner.provenance import device_name, git_commit, versions

OLDER = "0066be7"
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--data-root", default=os.environ.get("FLSEL_DATA"), required="FLSEL_DATA" not in os.environ
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    chosen = parser.parse_args()
    chosen.data_root = str(Path(chosen.data_root).resolve())
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
    installed = ", ".join(f"{name} {version}" for name, version in versions().items())
    machine = f"{device_name('cpu')}, {os.cpu_count()} cores"
    print(f"`python {' '.join(sys.argv)}`  \n{machine}; commit {git_commit()};", end=" ")
    print(f"{installed}  \nload average before: {_load()}\n", flush=True)
    for part in chosen.parts:
        began = time.perf_counter()
        PARTS[part](chosen)
        print(f"\n({time.perf_counter() - began:.0f} s; load average {_load()})\n", flush=True)


def rounds(chosen: argparse.Namespace) -> None:
    """Print how long a round takes beside the plain loop."""
    print("## A round of local training, two threads\n", flush=True)
    command = [sys.executable, str(HERE / "trainers.py"), "--data-root", chosen.data_root]
    command += ["--threads", str(chosen.threads), "--sides", "compiled", "compiled, two workers"]
    subprocess.run([*command, *["--quick"] * chosen.quick], check=True)


def cores(chosen: argparse.Namespace) -> None:
    """Print what one thread takes alone, and beside another process like it: what two workers could gain."""
    print("## One thread, alone and beside another process that does the same\n", flush=True)
    command = [sys.executable, str(HERE / "trainers.py"), "--data-root", chosen.data_root]
    command += ["--threads", "1", "--sides", "compiled", *["--quick"] * chosen.quick]
    for name, beside in (("Alone", 0), ("Beside another", 1)):
        others = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(beside)]
        try:
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        finally:
            for other in others:
                other.terminate()
                other.wait()
        print(f"{name}:\n\n{done.stdout}", flush=True)


def commands(chosen: argparse.Namespace) -> None:
    """Print how long whole commands take beside an older commit's."""
    print(f"## Commands, in turn with commit {OLDER}\n", flush=True)
    rounds = "20" if chosen.quick else "500"
    runs = {
        f"`flsel train --config fashion_mnist`, {rounds} rounds, an evaluation in each": (
            [
                "--config",
                "configs/runs/fashion_mnist.yaml",
                "--data.root",
                chosen.data_root,
                "--rounds",
                rounds,
            ],
            1 if chosen.quick else 3,
        ),
        "`flsel train`": ([], 1 if chosen.quick else 5),
    }
    rows = []
    with older() as before, tempfile.TemporaryDirectory() as folder:
        sides = {"before": before, "now": ROOT}
        for name, (words, repeats) in runs.items():
            seconds: dict[str, list[float]] = {side: [] for side in sides}
            cpu: dict[str, list[float]] = {side: [] for side in sides}
            memory: dict[str, float] = {}
            for repeat in range(repeats):
                for side in list(sides)[:: 1 if repeat % 2 else -1]:
                    wall, used, most = _execute(sides[side], words, folder)
                    seconds[side].append(wall)
                    cpu[side].append(used)
                    memory[side] = max(memory.get(side, 0.0), most)
            share = ratios(seconds["now"], seconds["before"])
            for side in sides:
                judged = (
                    [spread(share), "<= 0.5", verdict(median(share), 0.5)] if side == "now" else ["", "", ""]
                )
                times = [spread(seconds[side], " s", digits=1), spread(cpu[side], " s", digits=1)]
                rows.append([name, side, *times, f"{memory[side]:.2f} GB", *judged])
    columns = (
        "command",
        "commit",
        "wall time",
        "processor time",
        "peak memory",
        "now / before",
        "target",
        "",
    )
    print(table(columns, rows), flush=True)


@contextmanager
def older() -> Iterator[Path]:
    """Check the older commit out for a while."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / OLDER
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run(
            [*git, "add", "--detach", "--force", str(path), OLDER], check=True, capture_output=True
        )
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True, capture_output=True)


def _execute(root: Path, words: list[str], folder: str) -> tuple[float, float, float]:
    """Run ``flsel train`` of a checkout; return wall and processor seconds and the largest memory in GB."""
    given = [str(root / word) if word.startswith("configs/") else word for word in words]
    env = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'tune'}"}
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "flsel", "train", *given, "--accelerator", "cpu", "--output.dir", folder],
        cwd=folder,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise SystemExit(f"flsel train {' '.join(given)} of {root} failed.")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9


def _load() -> str:
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


PARTS = {"rounds": rounds, "cores": cores, "commands": commands}


if __name__ == "__main__":
    main()
