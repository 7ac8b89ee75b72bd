"""Kill runs, sweeps and comparisons at random moments, resume them, and compare bits with undisturbed ones.

    python tests/soak.py --minutes 30 --kinds train,tune,compare --seed 1

Only processes that it started, and their descendants, are killed, by their ids. It stops at the first
difference, with exit code 1 and both folders kept.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs import left_behind, same

CHOICES = {
    "selector": ["Uniform", "PowD", "AFL", "FedCor", "HiCS", "DivFL", "FedPNS", "FedGS", "ClusteredSampling"],
    "objective": ["FedAvg", "FedProx", "FedDyn", "SCAFFOLD", "MOON"],
    "partition": ["Natural", "IID", "Dirichlet"],
    "availability": ["IDL", "LN", "MDF"],
    "server_optimizer": ["SGD", "Adam"],
    "local.backend": ["sequential", "compiled"],
}
BASE = [
    "--clients", "12", "--clients_per_round", "3", "--accelerator", "cpu", "--threads", "1", "--quiet",
    "--data.synthetic.size_mean", "2", "--data.synthetic.size_std", "0.5", "--data.synthetic.dimension", "8",
    "--local.steps", "3", "--local.optimizer", "SGD", "--local.optimizer.lr", "0.05",
    "--local.optimizer.momentum", "0.9",
]  # fmt: skip
# Updates that arrive late, in runs whose selectors take them.
ASYNCHRONOUS = [
    "--selector", "Uniform", "--selector.weights", "equal", "--devices", "Phones", "--objective", "FedProx",
    "--asynchronous.concurrency", "6", "--asynchronous.buffer", "3", "--asynchronous.bound", "8",
]  # fmt: skip
MOST_TRIES = 60
# What of a trial depends on the clock or on how often it was killed.
_TIMED = ("seconds", "started", "finished", "time", "path", "folder", "retries", "resumed")


@dataclass(frozen=True)
class Kind:
    """A command that can be killed.

    Attributes:
        words: What starts it, but for the folder.
        folder: What a folder is given with.
        made: Where it writes below the given folder.
        shown: Reads what must be equal, bit for bit.
    """

    words: list[str]
    folder: str
    made: str
    shown: Any

    @property
    def name(self) -> str:
        return self.words[0]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kinds", default="train,tune,compare")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rounds", type=int, default=150, help="communication rounds of a run")
    given = parser.parse_args()
    rng, until, kills = random.Random(given.seed), time.monotonic() + 60 * given.minutes, Counter[str]()
    print(f"seed {given.seed}", flush=True)
    cases = 0
    while time.monotonic() < until:
        kind = make(rng.choice(given.kinds.split(",")), rng, given.rounds)
        home = Path(tempfile.mkdtemp(prefix="flsel-soak-"))
        print(f"case {cases}: flsel {' '.join(kind.words)}", flush=True)
        began = time.monotonic()
        code, said = watch(start(kind, home / "whole"), None, rng, kills)
        if code == 2 and "flsel: error: " in said:
            print(f"  refused: {said.strip().splitlines()[-1]}", flush=True)
            shutil.rmtree(home)
            continue
        seconds = time.monotonic() - began
        assert code == 0, said
        tries = disturb(kind, home / "killed", seconds, rng, kills)
        if not same(kind.shown(home / "whole" / kind.made), kind.shown(home / "killed" / kind.made)):
            print(f"  DIFFERENT after {tries} starts: {home}", flush=True)
            return 1
        shutil.rmtree(home)
        cases += 1
        print(f"  equal after {tries} starts; kills so far: {dict(kills)}", flush=True)
    print(f"{cases} cases equal, kills: {dict(kills)}, seed {given.seed}")
    return 0


def make(name: str, rng: random.Random, rounds: int) -> Kind:
    """Draw a command."""
    drawn = [word for key, values in CHOICES.items() for word in (f"--{key}", rng.choice(values))]
    drawn += ["--seed", str(rng.randrange(1000))]
    if name == "train":
        drawn += rng.choice([[], ASYNCHRONOUS])
        every = ["--rounds", str(rounds), "--output.checkpoint_every", str(rng.choice([1, 3, 10]))]
        return Kind(
            ["train", *BASE, *drawn, *every, "--output.name", "run"], "--output.dir", "run", left_behind
        )
    if name == "tune":
        space = ["--trials", "4", "--sampler", "random", "--scheduler", "none", "--max-concurrent", "2"]
        few = ["--selector", "HiCS", "--rounds", "60", "--seed", str(rng.randrange(1000))]
        return Kind(["tune", *BASE, *few, *space, "--name", "sweep"], "--folder", "sweep", trials)
    selectors = ",".join(rng.sample(["Uniform", "PowD", "AFL", "MD"], 2))
    cells = ["--selectors", selectors, "--seeds", "2", "--rounds", "60", "--name", "all"]
    cells += rng.choice([[], ["--max-concurrent", "2"]])  # in one process, or by Ray
    return Kind(["compare", *BASE, *cells], "--folder", "all", cells_of)


def trials(sweep: Path) -> Any:
    """The trials of a sweep, without what depends on the clock."""
    rows = json.loads((sweep / "trials.json").read_text())
    plain = [{k: v for k, v in row.items() if not any(word in k for word in _TIMED)} for row in rows]
    return sorted(plain, key=lambda row: json.dumps(row, sort_keys=True))


def cells_of(comparison: Path) -> Any:
    """Every run of a comparison, by its place."""
    found = {}
    for file in sorted(comparison.rglob("metrics.csv")):
        header, *rows = csv.reader(file.read_text().splitlines())
        kept = [n for n, name in enumerate(header) if not name.startswith("seconds/")]
        found[str(file.parent.relative_to(comparison))] = [[row[n] for n in kept] for row in rows]
    return found


def start(kind: Kind, folder: Path) -> subprocess.Popen[str]:
    return _popen([*kind.words, kind.folder, str(folder)])


def disturb(kind: Kind, folder: Path, seconds: float, rng: random.Random, kills: Counter[str]) -> int:
    """Start a command and kill it, or a part of it, until it comes through; return the number of starts."""
    for tries in range(1, MOST_TRIES):
        # A folder without settings in it was killed before there was anything to go on with.
        begun = (folder / kind.made / "config.yaml").exists()
        if not begun:
            shutil.rmtree(folder, ignore_errors=True)
        child = _popen([kind.name, "--resume", str(folder / kind.made)]) if begun else start(kind, folder)
        # Later starts have less to do; the last ones are left alone, so that every case ends.
        moment = rng.uniform(0.2, 1.1) * seconds if tries < MOST_TRIES // 2 else None
        code, said = watch(child, moment, rng, kills)
        if code == 0:
            return tries
        # Ray, or its cleanup, ends a driver whose daemon was killed.
        assert code == -signal.SIGKILL or "died, perhaps for lack of memory; " in said, f"code {code}: {said}"
    raise AssertionError(f"{folder} did not finish in {MOST_TRIES} starts")


def watch(
    child: subprocess.Popen[str], moment: float | None, rng: random.Random, kills: Counter[str]
) -> tuple[int | None, str]:
    """Wait for a process; after so many seconds kill it or one of its descendants.

    Returns:
        Its exit code, and what it said on standard error.
    """
    try:
        _, said = child.communicate(timeout=moment)
        return child.returncode, said
    except subprocess.TimeoutExpired:
        family = descendants(child.pid)
        # The driver in half of the cases; otherwise a worker, which it survives, or one of Ray's processes.
        chosen = child.pid if not family or rng.random() < 0.5 else rng.choice(sorted(family))
        kills[_label(chosen, child.pid)] += 1
        _kill(chosen)
        if chosen == child.pid:
            _, said = child.communicate()
            for pid in family:
                _kill(pid)  # what a driver that is gone has left; it may end by itself a moment later
            return child.returncode, said
        _, said = child.communicate()
        return child.returncode, said


def descendants(pid: int) -> set[int]:
    """Ids of all living processes that descend from one."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, left = set[int](), [pid]
    while left:
        for child in parents.get(left.pop(), []):
            found.add(child)
            left.append(child)
    return found


def _label(pid: int, driver: int) -> str:
    if pid == driver:
        return "driver"
    with contextlib.suppress(OSError):
        words = (
            (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
        return next(
            (
                n
                for n in ("ray::", "raylet", "gcs_server", "dashboard", "runtime_env", "monitor")
                if n in words
            ),
            "other",
        )
    return "gone"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _popen(words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flsel", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


if __name__ == "__main__":
    sys.exit(main())
