"""Run benchmarks, each in a process of its own, and keep their tables in ``results.md``.

``python benchmarks/run.py`` runs all, ``python benchmarks/run.py trainers shell`` some, and leaves the other
sections of the file as they are. With ``--quick`` nothing is written.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

from measure import add_options

from flsel.files import write_atomic
from flsel.runner.provenance import device_name, git_commit, versions

TITLES = {
    "trainers": "Local training against a plain PyTorch loop",
    "startup": "Start of a command",
    "shell": "What a round costs besides local training and evaluation",
    "full_run": "Fashion-MNIST from the command line",
    "population": "A hundred thousand clients",
    "selection": "Selection without training",
    "overhead": "What selection adds to a round",
    "clock": "What simulated time adds to a round",
    "asynchronous": "Asynchronous rounds compared with synchronous ones",
    "sweeps": "A trial of flsel tune compared with a run",
    "deciding": "Deciding how many seeds",
}
HERE = Path(__file__).parent
RESULTS = HERE / "results.md"
# Text behind this mark in a section is written by hand. It is kept.
END = "<!-- end -->"
PREAMBLE = "# Benchmarks\n\n[README.md](README.md) explains each benchmark and how to repeat it."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(TITLES)}; all if not given")
    add_options(parser)
    chosen = parser.parse_args()
    for name in chosen.names:
        if name not in TITLES:
            parser.error(f"there is no benchmark {name}; there are {', '.join(TITLES)}.")
    for name in chosen.names or TITLES:
        section = f"{_stamp(name, chosen)}\n\n{_output(name, chosen)}"
        print(f"## {TITLES[name]}\n\n{section}\n", flush=True)
        if not chosen.quick:
            _keep(TITLES[name], section)


def _output(name: str, chosen: argparse.Namespace) -> str:
    """Run one benchmark and return what it printed."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--accelerator", chosen.accelerator]
    command += ["--threads", str(chosen.threads), *["--quick"] * chosen.quick]
    if chosen.data_root is not None:
        command += ["--data-root", chosen.data_root]
    env = os.environ | {"OMP_NUM_THREADS": str(chosen.threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the benchmark {name} failed; its messages are above.")
    return done.stdout.strip()


def _stamp(name: str, chosen: argparse.Namespace) -> str:
    """Say what was run, on what, when."""
    given = f"--accelerator {chosen.accelerator} --threads {chosen.threads}"
    given += " --data-root DATA" if chosen.data_root is not None else ""
    given += " --quick" if chosen.quick else ""
    machine = f"{device_name('cpu')}, {os.cpu_count()} cores"
    if chosen.accelerator in ("cuda", "gpu"):
        machine += f", {device_name('cuda:0')}"
    installed = ", ".join(f"{package} {version}" for package, version in versions().items())
    today = datetime.now(timezone.utc).date().isoformat()
    return (
        f"`python benchmarks/run.py {name} {given}`  \n{machine}; {today}; commit {git_commit()}; {installed}"
    )


def _keep(title: str, section: str) -> None:
    """Put a section into the file of results, in the place of its older self, before the notes on it."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else PREAMBLE
    preamble, *parts = text.split("\n## ")
    kept = dict(part.split("\n\n", 1) for part in parts)
    notes = kept.get(title, "").partition(END)[2].strip()
    kept[title] = f"{section.strip()}\n\n{END}\n\n{notes}"
    sections = (f"## {known}\n\n{body.strip()}" for known, body in kept.items())
    write_atomic(RESULTS, "\n\n".join([preamble.strip(), *sections]) + "\n")


if __name__ == "__main__":
    main()
