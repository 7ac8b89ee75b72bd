"""How well do HiCS-FL's estimated entropies follow the true ones while it trains, and who is drawn for it?

    python benchmarks/signals.py --collect comparisons/hics_network comparisons/hics_cifar10
    python benchmarks/signals.py                                  # docs/results/data -> page

Reads what HiCS wrote of every run: its estimates (``diagnostics.jsonl``) and its cohorts (``rounds.jsonl``),
beside the clients' labels. The table is made of the committed file alone; a test compares it with the page.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from pages import markdown, options, put, read_rows
from scipy.stats import spearmanr

from flsel.comparison.comparison_file import read_declaration
from flsel.selectors._hics import label_entropy

RESULTS = Path(__file__).resolve().parents[1] / "docs/results"
DATA = RESULTS / "data/hics_signals.csv"
PAGE = RESULTS / "replications.md"
HEAD = ("comparison", "scenario", "variant", "seed", "first", "last", "share")
FIFTH = 5


def collect(folders: Iterable[Path]) -> None:
    """Write the file: a row for every run that has estimates of all clients' entropies."""
    with DATA.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEAD)
        for folder in folders:
            for cell in read_declaration(folder)[0].cells():
                run = folder / cell.folder
                if (run / "summary.json").exists() and (run / "diagnostics.jsonl").exists():
                    numbers = [f"{number:.4g}" for number in measure(run)]
                    table.writerow([folder.name, cell.scenario, cell.variant, cell.seed, *numbers])


def measure(run: Path) -> tuple[float, float, float]:
    """Measure a run of HiCS.

    Returns:
        Spearman's correlation of estimated and true entropies, over the clients, where all had been measured
        for the first time and in the last round that has it; the share of places in the rounds from the
        first on that went to the fifth of the clients whose labels are most balanced.
    """
    true = label_entropy(np.loadtxt(run / "labels.csv", delimiter=","))
    found = [
        line
        for line in _lines(run / "diagnostics.jsonl")
        if len(line["clients"]) == len(true) and np.isfinite(np.array(line["values"], float)).all()
    ]
    both = [float(spearmanr(line["values"], true[line["clients"]]).statistic) for line in found]
    places = np.zeros(len(true))
    for line in _lines(run / "rounds.jsonl"):
        if line["round"] >= found[0]["round"]:
            np.add.at(places, [client for chain in line["plan"] for client in chain], 1)
    balanced = np.argsort(-true, kind="stable")[: len(true) // FIFTH]
    return both[0], both[-1], float(places[balanced].sum() / places.sum())


def _lines(path: Path) -> list[dict[str, list[float]]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def table() -> str:
    """Return the file as a table in Markdown: means over the seeds, and their range."""
    rows = read_rows(DATA)
    head = ("comparison", "scenario", "", "seeds", "first", "last", "places of the most balanced fifth")
    lines = []
    for key in dict.fromkeys((row["comparison"], row["scenario"], row["variant"]) for row in rows):
        same = [row for row in rows if (row["comparison"], row["scenario"], row["variant"]) == key]
        cells = []
        for name, unit, form in (("first", 1, "{:.2f}"), ("last", 1, "{:.2f}"), ("share", 100, "{:.0f}")):
            values = [unit * float(row[name]) for row in same]
            cells.append(f"{form} ({form}..{form})".format(np.mean(values), min(values), max(values)))
        scenario = "" if key[1] == "all" else key[1]
        lines.append([f"`{key[0]}`", scenario, key[2], str(len(same)), *cells[:-1], f"{cells[-1]} %"])
    return markdown(head, lines)


def written(text: str) -> str:
    """Return the page with the table put in."""
    return put(text, "hics_signals", table())


def main() -> None:
    """Collect, or write the page's table."""
    parser = options(__doc__)
    parser.add_argument("--collect", type=Path, nargs="+", default=[], help="folders of comparisons")
    chosen = parser.parse_args()
    if chosen.collect:
        collect(chosen.collect)
    else:
        PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    main()
