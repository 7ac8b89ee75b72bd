"""Run the papers' experiments that a CPU can run, several seeds each, and print their tables.

    python benchmarks/evidence.py fedcor fedgs --seeds 1 2 3 --jobs 2 --data-root DIR --out runs/evidence

A finished run is not repeated and an interrupted one is resumed: the command can be stopped and given again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PAPERS = Path(__file__).resolve().parents[1] / "configs" / "papers"


@dataclass(frozen=True)
class Cell:
    """One number of a table: a config with settings, measured over seeds."""

    row: str
    column: str
    config: str
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """One table: cells, and how a run's folder becomes a number."""

    title: str
    cells: tuple[Cell, ...]
    measure: Callable[[Path], float | None]
    digits: int


def rounds_to_target(run: Path) -> float | None:
    """Communication rounds to the target accuracy, None if it was not reached."""
    reached: float | None = json.loads((run / "summary.json").read_text())["rounds_to_target"]
    return reached


def best_loss(run: Path) -> float:
    """Smallest test loss over all evaluations."""
    return float(json.loads((run / "summary.json").read_text())["best"]["test/loss"])


def last_accuracy(run: Path) -> float:
    """Mean test accuracy of the last ten evaluations, in per cent."""
    with open(run / "metrics.csv", newline="") as stream:
        rows = [float(row["test/accuracy"]) for row in csv.DictReader(stream)]
    return 100 * statistics.fmean(rows[-10:])


EQUAL = ("--selector", "Uniform", "--selector.weights", "equal")


def fedcor() -> Experiment:
    """FedCor, Table 1: rounds to 69 / 62 / 64 % on Fashion-MNIST."""
    cells = []
    for column, budget in (("2spc", 5), ("1spc", 10), ("dir", 5)):
        rows = {
            "Uniform": EQUAL,
            "AFL": ("--selector", "AFL"),
            "PowD": ("--selector", "PowD", "--selector.d", str(2 * budget)),
            "FedCor": (),
        }
        file = f"fedcor/fashion_mnist_{column}.yaml"
        cells += [Cell(row, column, file, settings) for row, settings in rows.items()]
    return Experiment("FedCor, Table 1: rounds to the target", tuple(cells), rounds_to_target, 1)


def fedgs() -> Experiment:
    """FedGS, Table 2, Synthetic(0.5, 0.5): best test loss under five availability modes."""
    rows = {
        "Uniform": ("--selector", "Uniform"),
        "MD": ("--selector", "MD"),
        "PowD": ("--selector", "PowD", "--selector.d", "30"),
    }
    for alpha in ("0", "0.5", "1", "2", "5"):
        rows[f"FedGS {alpha}"] = ("--selector.alpha", alpha)
    cells = [
        Cell(row, mode, "fedgs/synthetic.yaml", (*settings, "--availability", mode))
        for mode in ("IDL", "LN", "SLN", "LDF", "MDF")
        for row, settings in rows.items()
    ]
    return Experiment("FedGS, Table 2, Synthetic(0.5, 0.5): best test loss", tuple(cells), best_loss, 4)


def fedpns() -> Experiment:
    """FedPNS on MNIST with logistic regression: accuracy of the last ten rounds."""
    cells = [
        Cell(
            row,
            f"sigma {share} rho {labels}",
            "fedpns/mnist_mlr.yaml",
            (*settings, "--partition.iid_share", share, "--partition.labels_per_client", labels),
        )
        for labels in ("1", "2")
        for share in ("0.2", "0.3", "0.5")
        for row, settings in (("FedAvg", EQUAL), ("FedPNS", ()))
    ]
    return Experiment("FedPNS, MNIST, MLR: test accuracy in %", tuple(cells), last_accuracy, 1)


def hics() -> Experiment:
    """HiCS-FL, Fashion-MNIST, setting (2): rounds to 75 %."""
    rows = {
        "Uniform": EQUAL,
        "PowD": ("--selector", "PowD", "--selector.d", "50"),
        "ClusteredSampling": ("--selector", "ClusteredSampling"),
        "DivFL": ("--selector", "DivFL"),
        "HiCS": (),
    }
    cells = [Cell(row, "setting (2)", "hics/fashion_mnist.yaml", settings) for row, settings in rows.items()]
    return Experiment("HiCS-FL, Fashion-MNIST: rounds to 75 %", tuple(cells), rounds_to_target, 1)


def fedcat() -> Experiment:
    """FedCat on MNIST with a small network: accuracy of the last ten evaluations."""
    rows = {
        "FedAvg": ("--selector", "Uniform"),
        "grouping only": ("--selector.concatenation", "false"),
        "concatenation only": ("--selector.grouping", "false"),
        "FedCat": (),
    }
    cells = [Cell(row, "Dir(0.1)", "fedcat/mnist_small.yaml", settings) for row, settings in rows.items()]
    return Experiment("FedCat, MNIST, small network: test accuracy in %", tuple(cells), last_accuracy, 2)


EXPERIMENTS = {made.__name__: made for made in (fedcor, fedgs, fedpns, hics, fedcat)}


def play(cell: Cell, seed: int, folder: Path, extra: list[str]) -> None:
    """Play one run unless it is finished; resume it if it was interrupted."""
    if (folder / "summary.json").exists():
        return
    if (folder / "checkpoints" / "last.ckpt").exists():
        arguments = ["--resume", str(folder)]
    else:
        arguments = [
            "--config", str(PAPERS / cell.config), *cell.settings, "--seed", str(seed), "--quiet", "true",
            "--output.dir", str(folder.parent), "--output.name", folder.name, *extra,
        ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "flsel", "train", *arguments], check=True, env=environment)


def table(experiment: Experiment, found: dict[Cell, list[float | None]]) -> str:
    """Lay the cells out as a Markdown table: mean and standard deviation over seeds."""
    columns = list(dict.fromkeys(cell.column for cell in experiment.cells))
    lines = [
        f"### {experiment.title}",
        "",
        "| | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for row in dict.fromkeys(cell.row for cell in experiment.cells):
        values = {cell.column: found[cell] for cell in experiment.cells if cell.row == row}
        lines.append(f"| {row} | " + " | ".join(show(values[c], experiment.digits) for c in columns) + " |")
    return "\n".join(lines) + "\n"


def show(values: list[float | None], digits: int) -> str:
    """Write mean ± standard deviation, or how many seeds got there."""
    got = [value for value in values if value is not None]
    if len(got) < len(values):
        best = f", best {min(got):g}" if got else ""
        return f"{len(got)} of {len(values)} seeds{best}"
    spread = statistics.stdev(got) if len(got) > 1 else 0.0
    return f"{statistics.fmean(got):.{digits}f} ± {spread:.{digits}f}"


def main() -> None:
    """Play the chosen experiments and print their tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=list(EXPERIMENTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--data-root", default=os.environ.get("FLSEL_DATA"))
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"))
    options = parser.parse_args()
    extra = ["--data.root", options.data_root] if options.data_root else []
    for name in options.names:
        experiment = EXPERIMENTS[name]()
        plan = [
            (cell, seed, options.out / name / f"{cell.column}-{cell.row}-s{seed}".replace(" ", "_"))
            for seed in options.seeds
            for cell in experiment.cells
        ]
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda job: play(*job, extra), plan))
        found: dict[Cell, list[float | None]] = {cell: [] for cell in experiment.cells}
        for cell, _, folder in plan:
            found[cell].append(experiment.measure(folder))
        print(table(experiment, found), flush=True)


if __name__ == "__main__":
    main()
