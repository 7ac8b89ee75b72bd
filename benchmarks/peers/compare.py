"""flsel beside other simulators: the same arithmetic, rounds in turn, each side in its own process.

python benchmarks/peers/install.py DIR
python benchmarks/peers/compare.py DIR --data-root DATA [--only W1] [--rounds 5] [--peers fedlab pfl]
python benchmarks/peers/compare.py DIR --data-root DATA --write      # results.md and its picture

Prints Markdown. A side stands still while another runs a round; before the table there is a check that all
have trained the same clients on as many examples and come, in the first round, to the plain loop's model.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from cases import ROUNDS, TITLES, write  # noqa: E402
from figure import RESULTS, draw  # noqa: E402
from install import PEERS  # noqa: E402
from measure import drift, ratios, spread, table  # noqa: E402

from flsel.runner.provenance import device_name, git_commit, versions  # noqa: E402

# Largest difference of two parameters after the first round, in single precision; a wrong batch makes 1e-2.
# Later, rounding grows: a unit that is off on one side and on at the other sets two trainings apart.
CLOSE, CHECKED = 1e-3, 1
PLAIN = "plain PyTorch loop"
# Seconds for a round. Flower never answers if its Ray does not start.
PATIENCE = 120.0
# Rounds of each side: the first, and then each side starts equally often.
USUAL = {"W1": 25, "W2": 9}
HEAD = """# Other simulators: what was measured

[README.md](README.md) explains the comparison. `compare.py --write` writes this page and `peers.svg`.
A round's time and its ratio to the plain loop's are medians with smallest and largest value.
"""
# A side's file, its environment (None is this one), and its arguments.
SIDES: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    PLAIN: ("plain.py", None, ()),
    "flsel": ("ours.py", None, ("1",)),
    "flsel, two workers": ("ours.py", None, ("2",)),
    "FedLab": ("with_fedlab.py", "fedlab", ()),
    "FLGo": ("with_flgo.py", "flgo", ()),
    "pfl-research": ("with_pfl.py", "pfl", ()),
    "Flower, one actor": ("with_flower.py", "flower", ("1",)),
    "Flower, two actors": ("with_flower.py", "flower", ("2",)),
}


@dataclass
class Side:
    """A process that runs a round when it is told to.

    Attributes:
        process: The process.
        wall, cpu: Seconds of its rounds.
        memory: Most memory of it and its children after a round, in GB.
        examples: Examples that it trained on.
    """

    process: subprocess.Popen[str]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: float = 0.0
    examples: int = 0

    def ask(self, word: str) -> dict[str, Any]:
        """Say a word and wait for the answer."""
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise TimeoutError
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended with code {self.process.wait()}.")
        found: dict[str, Any] = json.loads(line)
        return found

    def run_round(self) -> None:
        """Run a round."""
        took = self.ask("go")
        self.wall.append(took["wall"])
        self.cpu.append(took["cpu"])
        self.memory = max(self.memory, took["memory"])
        self.examples += took["examples"]


def main() -> None:
    chosen = _options()
    told = [HEAD, _setting()]
    print(told[-1], flush=True)
    for kind in chosen.only:
        told.append(_measure(kind, chosen))
        print(told[-1], flush=True)
    if chosen.write:
        RESULTS.write_text("\n".join(told), encoding="utf-8")
        draw()


def _setting() -> str:
    installed = ", ".join(f"{name} {version}" for name, version in versions().items())
    machine = f"{device_name('cpu')}, {os.cpu_count()} cores"
    of_peers = ", ".join(requirement.replace("==", " ") for requirement in PEERS.values())
    return (
        f"`python {' '.join(sys.argv)}`  \n{machine}; commit {git_commit()}; {installed}  \n"
        f"Peers: {of_peers}. Load average before: {_load()}.\n"
    )


def _measure(kind: str, chosen: argparse.Namespace) -> str:
    """Run a workload on all sides and return its section."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work.npz")
        write(kind, chosen.data_root, work)
        sides = {name: _start(name, kind, work, chosen) for name in chosen.sides}
        try:
            for side in sides.values():
                side.answer()
            _run_rounds(sides, 0, CHECKED)
            apart = _compare(sides, Path(folder))
            _run_rounds(sides, CHECKED, chosen.rounds or USUAL[kind])
        finally:
            for side in sides.values():
                _stop(side)
    gone = "".join(
        f"\n{name} is left out: it did not answer within {PATIENCE:g} s.\n"
        for name in chosen.sides
        if name not in sides
    )
    return f"## {kind}: {TITLES[kind]}\n\n{_table(sides, apart)}{gone}"


def _run_rounds(sides: dict[str, Side], first: int, last: int) -> None:
    names = list(sides)
    for repeat in range(first, last):
        start = repeat % len(names)
        for name in names[start:] + names[:start]:
            if name not in sides:
                continue
            try:
                sides[name].run_round()
            except TimeoutError:
                _stop(sides.pop(name), patience=1)


def _compare(sides: dict[str, Side], folder: Path) -> dict[str, float]:
    """Return how far each side's parameters are from the plain loop's; refuse other arithmetic."""
    held: dict[str, list[torch.Tensor]] = {}
    for place, (name, side) in enumerate(sides.items()):
        side.ask(f"save {folder / str(place)}")
        held[name] = torch.load(folder / str(place), weights_only=True)
    apart = {}
    for name, values in held.items():
        pairs = zip(values, held[PLAIN], strict=True)
        apart[name] = max(float((a.reshape(-1) - b.reshape(-1)).abs().max()) for a, b in pairs)
        if apart[name] > CLOSE or sides[name].examples != sides[PLAIN].examples:
            raise SystemExit(
                f"{name} did other arithmetic than the plain loop: {apart[name]:.1e} apart, "
                f"{sides[name].examples} and {sides[PLAIN].examples} examples."
            )
    return apart


def _table(sides: dict[str, Side], apart: dict[str, float]) -> str:
    rows = []
    base = sides[PLAIN]
    for name, side in sides.items():
        # The first round starts actors, traces and warms up.
        wall, cpu = side.wall[1:], side.cpu[1:]
        times = [spread(wall, " ms", 1000, 0), spread(ratios(wall, base.wall[1:]))]
        used = [f"{1000 * median(cpu):.0f} ms", f"{sum(cpu) / max(sum(base.cpu[1:]), 1e-9):.2f}"]
        rows.append(
            [name, *times, *used, f"{side.wall[0]:.1f} s", f"{side.memory:.2f} GB", f"{apart[name]:.0e}"]
        )
    columns = (
        "side", "wall time a round", "times the plain loop", "processor time", "times the plain loop",
        "first round", "memory", "apart after one",
    )  # fmt: skip
    below = f"{len(base.wall) - 1} rounds; load average {_load()}. {drift(base.wall[1:])}".rstrip()
    return f"{table(columns, rows)}\n\n{below}\n"


def _start(name: str, kind: str, work: Path, chosen: argparse.Namespace) -> Side:
    file, environment, told = SIDES[name]
    python = sys.executable if environment is None else str(chosen.folder / environment / "bin/python")
    given = [str(work), *told]
    if file == "ours.py":
        given = [kind, chosen.data_root, str(HERE), *told]
    env = os.environ | {
        "OMP_NUM_THREADS": str(chosen.threads),
        "PYTHONPATH": os.pathsep.join((str(HERE / "sides"), str(ROOT))),
    }
    log = subprocess.DEVNULL if not chosen.verbose else None
    return Side(
        subprocess.Popen(
            [python, str(HERE / "sides" / file), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env,
        )
    )


def _stop(side: Side, patience: float = 30) -> None:
    assert side.process.stdin is not None
    if side.process.poll() is None:
        print("stop", file=side.process.stdin, flush=True)
    try:
        side.process.wait(patience)
    except subprocess.TimeoutExpired:
        side.process.kill()


def _load() -> str:
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="where install.py made the environments")
    parser.add_argument("--data-root", default=os.environ.get("FLSEL_DATA"), help="folder with FashionMNIST")
    parser.add_argument("--only", nargs="*", choices=TITLES, default=list(TITLES))
    parser.add_argument("--peers", nargs="*", default=["fedlab", "flgo", "pfl", "flower"])
    parser.add_argument("--rounds", type=int, choices=range(4, ROUNDS + 1), metavar=f"4..{ROUNDS}",
                        help=f"rounds of each side (default: {USUAL})")  # fmt: skip
    parser.add_argument("--write", action="store_true", help="write results.md and draw it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="show what the sides say")
    chosen = parser.parse_args()
    if chosen.write and list(chosen.only) != list(TITLES):
        parser.error("--write replaces all of results.md: leave --only out.")
    chosen.folder, chosen.data_root = chosen.folder.resolve(), str(Path(chosen.data_root).resolve())
    able: Sequence[str | None] = (None, *chosen.peers)
    chosen.sides = [name for name, (_, env, _) in SIDES.items() if env in able]
    return chosen


if __name__ == "__main__":
    main()
