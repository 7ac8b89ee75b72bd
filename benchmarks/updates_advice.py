"""Write docs/results/updates.md: does the advice of the README hold if updates change on their way?

    python benchmarks/evidence.py updates updates_median
    python benchmarks/updates_advice.py
    FLSEL_DATA=DIR python benchmarks/evidence.py updates_fashion updates_fashion_median
    # runs -> docs/results/data -> page
    python benchmarks/updates_advice.py updates_fashion updates_fashion_median

Runs of Fashion-MNIST are added to docs/results/data/updates_fashion.csv, so that another machine can run the
seeds and selectors that are not there.

The rule, which was written before the runs:

- A result is the mean test accuracy of the last five evaluations. A difference is the selector's result minus
  that of Uniform, in the same scenario and with the same seed, in points.
- For each condition and selector the mean difference is over all scenarios and seeds that are finished for
  both, with a 95 % t-interval over these pairs. Fewer than six pairs are not judged.
- The advice *holds* for a selector in a condition if the interval is above zero. It is *reversed* if the
  interval is below zero. Otherwise it is *open*.
- The advice of the README holds in a condition if it is reversed for no selector, and holds for at least one
  of FedGS and PowD, which the atlases rank first.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pages import put, read_rows, update_rows
from scipy import stats

import flsel

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs/results/updates.md"
DATA = HERE.parent / "docs/results/data/updates_fashion.csv"
SYNTHETIC, FASHION = "Synthetic(0.5, 0.5)", "Fashion-MNIST"
COMPARISONS = {
    "updates": SYNTHETIC, "updates_median": SYNTHETIC,
    "updates_fashion": FASHION, "updates_fashion_median": FASHION,
}  # fmt: skip
CONDITIONS = (
    "plain", "noise 0.005", "noise 0.02", "noise 0.05", "noise 0.2", "corrupt, mean", "corrupt, median",
    "TopK 5 %", "partial work",
)  # fmt: skip
SELECTORS = ("FedGS", "PowD", "AFL", "UCBCS", "F3AST", "ClusteredSampling")
FIRST = ("FedGS", "PowD")
LAST, FEWEST = 5, 6

Results = dict[str, dict[tuple[str, int], dict[str, float]]]


def measured(folder: Path) -> Iterator[list[str]]:
    """Yield condition, scenario, seed, selector and points of accuracy of each finished run."""
    for summary in sorted(folder.rglob("summary.json")):
        run = flsel.Result.load(summary.parent)
        scenario, _, condition = scenario_of(summary).partition("; ")
        points = 100 * float(np.mean(run.history["test/accuracy"][-LAST:]))
        yield [condition, scenario, str(run.config.seed), type(run.config.selector).__name__, f"{points:.6g}"]


def results(rows: list[list[str]]) -> Results:
    """Return points of accuracy by condition, by scenario and seed, and by selector."""
    found: Results = defaultdict(lambda: defaultdict(dict))
    for condition, scenario, seed, selector, points in rows:
        found[condition][scenario, int(seed)][selector] = float(points)
    return found


def scenario_of(summary: Path) -> str:
    """Return the name of a run's scenario, as the comparison's file has it."""
    import yaml

    settings = yaml.safe_load((summary.parent / "config.yaml").read_text())
    steps = [step["class_path"].rpartition(".")[2] for step in settings["updates"]]
    where = settings["partition"]["class_path"].rpartition(".")[2], settings["availability"]["class_path"]
    place = {"Dirichlet": "Dirichlet 0.1, IDL"}.get(where[0]) or (
        "2SPC, YMF" if where[1].endswith("YMF") else "1SPC, LN"
    )
    if "GaussianNoise" in steps:
        condition = f"noise {settings['updates'][1]['init_args']['multiplier']:g}"
    elif "Corrupt" in steps:
        condition = f"corrupt, {settings['aggregate']['class_path'].rpartition('.')[2].lower()}"
    else:
        condition = "TopK 5 %" if steps else "partial work" if settings["devices"] else "plain"
    return f"{place}; {condition}"


def judged(pairs: list[float]) -> tuple[str, str]:
    """Return a cell of the table, and what the rule says."""
    if len(pairs) < FEWEST:
        return "", "not judged"
    mean, half = float(np.mean(pairs)), float(stats.sem(pairs) * stats.t.ppf(0.975, len(pairs) - 1))
    said = "holds" if mean > half else "reversed" if mean < -half else "open"
    mark = {"holds": "**", "reversed": "*", "open": ""}[said]
    return f"{mark}{mean:+.1f}{mark} [{mean - half:+.1f}, {mean + half:+.1f}]", said


def tables(found: Results) -> str:
    """Return the table and the verdict of each condition."""
    rows = ["| condition | Uniform | " + " | ".join(SELECTORS) + " | pairs | the advice |"]
    rows.append("|---" * (len(SELECTORS) + 4) + "|")
    for condition in (name for name in CONDITIONS if name in found):
        runs = found[condition]
        cells, verdicts, count = [], {}, 0
        for name in SELECTORS:
            pairs = [own[name] - own["Uniform"] for own in runs.values() if {name, "Uniform"} <= own.keys()]
            cell, verdicts[name] = judged(pairs)
            refused = condition == "corrupt, median" and name in ("F3AST", "ClusteredSampling")
            cells.append("refused" if refused else cell)
            count = max(count, len(pairs))
        if any(said != "not judged" for said in verdicts.values()):
            good = any(verdicts[name] == "holds" for name in FIRST) and "reversed" not in verdicts.values()
            reversed_for = [name for name, said in verdicts.items() if said == "reversed"]
            verdict = "holds" if good else f"does not hold: {_why(verdicts, reversed_for)}"
        else:
            verdict = "not judged"
        level = [own["Uniform"] for own in runs.values() if "Uniform" in own]
        uniform = f"{np.mean(level):.1f}" if level else ""
        rows.append(f"| {condition} | {uniform} | {' | '.join(cells)} | {count} | {verdict} |")
    return "\n".join(rows)


def _why(verdicts: dict[str, str], reversed_for: list[str]) -> str:
    if reversed_for:
        return f"reversed for {', '.join(reversed_for)}"
    return f"open for {' and '.join(FIRST)}"


def main() -> None:
    """Write a table into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=["updates", "updates_median"], help="comparisons")
    parser.add_argument("--root", type=Path, default=Path("comparisons"), help="folder of the comparisons")
    chosen = parser.parse_args()
    (data,) = {COMPARISONS[name] for name in chosen.names}
    rows = [row for name in chosen.names for row in measured(chosen.root / name)]
    if data == FASHION:
        update_rows(DATA, ["condition", "scenario", "seed", "selector", "points"], rows, key=4)
        rows = [list(row.values()) for row in read_rows(DATA)]
    text = put(PAGE.read_text(encoding="utf-8"), data, tables(results(rows)))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
