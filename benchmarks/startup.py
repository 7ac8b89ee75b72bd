"""What a user waits for before anything happens: commands and imports, each in a fresh process."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from measure import ROOT, add_options, spread, table, verdict

_SGD = "import torch; torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)"
# As the command does it, and as an older checkout did.
_IMPORTS = (
    "from flsel.commands import cli; "
    "cli.load('train') if hasattr(cli, 'load') else __import__('flsel.commands.train')"
)
_LIGHTNING = "import lightning.pytorch"
# What is started, the most seconds of processor time it may take, and whether an older checkout has it too.
COMMANDS: dict[str, tuple[list[str], float | None, bool]] = {
    "`flsel --help`": (["-m", "flsel", "--help"], None, True),
    "`flsel train --help`": (["-m", "flsel", "train", "--help"], 2.0, True),
    "what `flsel train` imports before it reads its settings": (["-c", _IMPORTS], 2.5, True),
    "`flsel train --rounds 1`, to its summary": (
        ["-m", "flsel", "train", "--rounds", "1", "--quiet"],
        None,
        True,
    ),
    "`flsel train`, to its summary": (["-m", "flsel", "train", "--quiet"], None, True),
    "`import torch`": (["-c", "import torch"], None, False),
    "`import torch` and its first optimizer": (["-c", _SGD], None, False),
    "`import lightning.pytorch`": (["-c", _LIGHTNING], None, False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--against", type=Path, help="an older checkout, which takes turns with this")
    parser.add_argument("--only", default="", help="commands whose name holds this")
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
    sides = {"now": ROOT} | ({"before": chosen.against.resolve()} if chosen.against else {})
    asked = {name: command for name, command in COMMANDS.items() if chosen.only in name}
    cpu: dict[tuple[str, str], list[float]] = {}
    wall: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(-1, 2 if chosen.quick else 7):
            for name, (command, _, ours) in asked.items():
                for side, root in list(sides.items())[:: 1 if repeat % 2 else -1]:
                    if side == "before" and not ours:
                        continue
                    took = _time(command, root, folder)
                    if repeat >= 0:  # the first fills the caches of files and bytecode
                        cpu.setdefault((name, side), []).append(took[0])
                        wall.setdefault((name, side), []).append(took[1])
    rows = []
    for name, side in cpu:
        used, limit = cpu[name, side], COMMANDS[name][1] if side == "now" else None
        judged = ["", ""] if limit is None else [f"<= {limit:g} s", verdict(median(used), limit)]
        rows.append([name, side, spread(used, " s"), spread(wall[name, side], " s"), *judged])
    print(table(("what", "checkout", "processor time", "wall time", "target (processor time)", ""), rows))


def _time(command: list[str], root: Path, folder: str) -> tuple[float, float]:
    """Run Python on a checkout; return processor and wall seconds."""
    env = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'tune'}"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


if __name__ == "__main__":
    main()
