"""Does a temperature of its own for every client help HiCS-FL? Beside Uniform and true entropies.

    python benchmarks/hics_temperature.py --data-root DIR    # plays what is missing
    python benchmarks/hics_temperature.py --show --document docs/results/hics-temperature.md

Runs one after another; start it again after an interruption. A row is shown for the seeds that finished.
"""

from __future__ import annotations

import argparse
import csv
import os
from itertools import product
from pathlib import Path

import numpy as np

CONFIG = "papers/hics/fashion_mnist_small"
ROUNDS, TARGET, SEEDS = 150, 0.75, range(11, 19)
SETTINGS = {
    2: "[0.001,0.002,0.005,0.01,0.2]",
    1: "[0.001,0.002,0.005,0.01,0.5]",
    3: "[0.001,0.001,0.001,0.001,0.001]",
}
AUTO = ("--selector.temperature", "auto")
OWN = (*AUTO, "--selector.temperature_per_client", "true")
WEIGHTS = ("--selector.signal", "weight_mean")
ROWS = {
    "uniform": ("Uniform", ("--selector", "Uniform", "--selector.weights", "equal")),
    "shared": ("HiCS, one temperature (default)", AUTO),
    "own": ("HiCS, temperature per client", OWN),
    "oracle": ("HiCS with true entropies", ("--selector", "HiCSOracle")),
    "ownw": ("HiCS, temperature per client, weights", (*OWN, *WEIGHTS)),
}


def play(folder: Path, setting: int, seed: int, settings: tuple[str, ...], data_root: str | None) -> None:
    """Play one run in this process unless it is finished; resume it if it was interrupted."""
    from flsel.commands.cli import main as flsel

    if (folder / "summary.json").exists():
        return
    if (folder / "checkpoints" / "last.ckpt").exists():
        arguments = ["--resume", str(folder)]
    else:
        arguments = [
            "--config", CONFIG, "--rounds", str(ROUNDS), "--seed", str(seed), "--quiet", "true",
            "--partition.alphas", SETTINGS[setting], *settings,
            "--output.dir", str(folder.parent), "--output.name", folder.name,
            *(("--data.root", data_root) if data_root else ()),
        ]  # fmt: skip
    if code := flsel(["train", *arguments]):
        raise RuntimeError(f"flsel train {' '.join(arguments)} ended with exit code {code}")


def curve(folder: Path) -> np.ndarray:
    """Read the test accuracies of a finished run, one a round."""
    with (folder / "metrics.csv").open() as file:
        return np.array([float(row["test/accuracy"]) for row in csv.DictReader(file)])


def measures(accuracy: np.ndarray) -> list[float]:
    """Return the rounds to the target (beyond the run: one more than it has), and three accuracies in %."""
    reached = np.flatnonzero(accuracy >= TARGET)
    first = float(reached[0] + 1) if len(reached) else float(len(accuracy) + 1)
    return [first, *(100 * float(accuracy[end - 10 : end].mean()) for end in (50, 100, ROUNDS))]


def table(out: Path, setting: int) -> str:
    """Lay one setting out: every seed's rounds to the target, means, and paired differences to Uniform."""
    found = {
        (row, seed): measures(curve(out / f"{row}-{setting}-s{seed}"))
        for row, seed in product(ROWS, SEEDS)
        if (out / f"{row}-{setting}-s{seed}" / "summary.json").exists()
    }
    lines = []
    for row, (name, _) in ROWS.items():
        seeds = [seed for seed in SEEDS if (row, seed) in found and ("uniform", seed) in found]
        if not seeds:
            continue
        values = np.array([found[row, seed] for seed in seeds])
        gaps = values - np.array([found["uniform", seed] for seed in seeds])
        every = ", ".join(f"{v:.0f}" if v <= ROUNDS else f"> {ROUNDS}" for v in values[:, 0])
        cells = [
            f"{values[:, k].mean():.1f}" + ("" if row == "uniform" else _gap(gaps[:, k])) for k in (1, 2, 3)
        ]
        lines.append(f"| {name} | {seeds[0]} to {seeds[-1]} | {every} | " + " | ".join(cells) + " |")
    if not lines:
        return ""
    columns = ("seeds", "rounds to 75 %", "round 50", "round 100", f"round {ROUNDS}")
    head = f"| setting ({setting}) | " + " | ".join(columns) + " |\n" + "|---" * 6 + "|"
    return head + "\n" + "\n".join(lines)


def _gap(gaps: np.ndarray) -> str:
    """Show the mean paired difference, its 95 % interval (t), and how many seeds are ahead."""
    from scipy.stats import t

    ahead = f"{np.count_nonzero(gaps > 0)}/{len(gaps)}"
    if len(gaps) < 2:
        return f" ({gaps.mean():+.1f}; {ahead})"
    half = t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    return f" ({gaps.mean():+.1f} ± {half:.1f}; {ahead})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", default=os.environ.get("FLSEL_DATA"))
    parser.add_argument("--out", type=Path, default=Path("runs/hics_temperature"))
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--document", type=Path, help="put the tables between its <!-- tables --> marks")
    options = parser.parse_args()
    if not options.show:
        for setting, seed, row in product(SETTINGS, SEEDS, ROWS):
            folder = options.out / f"{row}-{setting}-s{seed}"
            play(folder, setting, seed, ROWS[row][1], options.data_root)
    tables = "\n\n".join(filter(None, (table(options.out, setting) for setting in SETTINGS)))
    if options.document is None:
        print(tables)
        return
    before, _, rest = options.document.read_text().partition("<!-- tables -->\n")
    after = rest.partition("<!-- end -->\n")[2]
    options.document.write_text(f"{before}<!-- tables -->\n\n{tables}\n\n<!-- end -->\n{after}")


if __name__ == "__main__":
    main()
