"""Judge the claims of FedBuff and Papaya by the rule in evidence/async.yaml.

    python benchmarks/async_claims.py --collect comparisons/async   # runs -> docs/results/data/async.csv
    python benchmarks/async_claims.py                               # that file -> the page

The committed file is all that the tables need. A test compares them with the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pages import markdown, options, put, read_rows, update_rows
from scipy import stats

from flsel.comparison.comparison_file import read_declaration
from flsel.runner.result import Result

ROOT = Path(__file__).resolve().parents[1]
PAGE, DATA = ROOT / "docs/results/asynchronous.md", ROOT / "docs/results/data/async.csv"
TARGET, WINDOW = 0.77, 3
COSTS = ("trainings", "simulated_seconds", "bytes")
COLUMNS = ("variant", "seed", *COSTS, "reached", "accuracy", "seconds", "staleness", "wasted")
# Variant, variant that spends more, cost, claimed factor, and whether the paper says "up to".
CLAIMS = (
    ("FedBuff", "Synchronous", "trainings", 3.3, False),
    ("FedBuff", "FedAsync", "trainings", 2.5, True),
    ("FedBuff", "Over-selected", "simulated_seconds", 5.0, False),
    ("FedBuff", "Over-selected", "bytes", 8.0, False),
)
ALSO = (
    ("FedBuff by weights", "Synchronous", "trainings"),
    ("FedBuff", "Synchronous", "simulated_seconds"),
    ("Pisces", "FedBuff", "trainings"),
    ("Pisces", "FedBuff", "simulated_seconds"),
)


def measure(run: Path) -> list[float]:
    """Return the row of a run: its costs to the target and its last values."""
    result = Result.load(run)
    spent = [result.to_target(TARGET, cost=cost, window=WINDOW) for cost in COSTS]
    history = result.history
    late = history.get("async/staleness_mean")
    return [
        *(cost.value for cost in spent),
        float(spent[0].reached),
        float(history["test/accuracy"][-WINDOW:].mean()),
        float(history["clock/seconds"][-1]),
        0.0 if late is None else float(late[1:].mean()),
        float(history["clock/wasted_client_seconds"][-1] / history["ledger/client_seconds"][-1]),
    ]


def collect(folder: Path) -> None:
    """Add the measurements of a comparison's complete runs to the file, one row a run."""
    runs = ((cell, folder / cell.folder) for cell in read_declaration(folder)[0].cells())
    rows = (
        [cell.variant, cell.seed, *(f"{value:.6g}" for value in measure(run))]
        for cell, run in runs
        if (run / "summary.json").exists()
    )
    update_rows(DATA, list(COLUMNS), rows, key=2)


def ratio(rows: Sequence[dict[str, str]], one: str, other: str, cost: str) -> tuple[float, float, float, int]:
    """Return the factor by which a variant spends less than another, its 95 % interval, and the pairs.

    A pair has two runs of one seed that both reach the target.
    """
    spent = {(row["variant"], row["seed"]): float(row[cost]) for row in rows if float(row["reached"]) == 1.0}
    seeds = [seed for variant, seed in spent if variant == one and (other, seed) in spent]
    logs = np.log([spent[other, seed] / spent[one, seed] for seed in seeds])
    if len(logs) < 2:
        return (math.exp(float(logs.mean())) if len(logs) else math.nan), math.nan, math.nan, len(logs)
    half = float(stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    low, mean, high = (math.exp(float(logs.mean()) + step) for step in (-half, 0.0, half))
    return mean, low, high, len(logs)


def word(low: float, high: float, seeds: int, factor: float, up_to: bool) -> str:
    """Return the rule's verdict on a claimed factor."""
    if seeds < 3 or math.isnan(low) or low <= 1 <= high:
        return "open"
    if high < 1:
        return "open" if up_to else "contradicted"
    return "confirmed" if low >= factor and not up_to else "in direction"


def _times(found: tuple[float, float, float, int]) -> str:
    mean, low, high, seeds = found
    if seeds == 0:
        return "no pairs"
    return f"{mean:.2f} x [{low:.2f}, {high:.2f}]" if seeds > 1 else f"{mean:.2f} x"


def claims(rows: Sequence[dict[str, str]]) -> str:
    """Return the table of the claims."""
    lines = []
    for one, other, cost, factor, up_to in CLAIMS:
        found = ratio(rows, one, other, cost)
        said = f"{'up to ' if up_to else ''}{factor:g} x"
        given = word(*found[1:], factor, up_to)
        lines.append(
            [f"{one} against {other}", _called(cost), said, _times(found), str(found[3]), f"*{given}*"]
        )
    for one, other, cost in ALSO:
        found = ratio(rows, one, other, cost)
        lines.append([f"{one} against {other}", _called(cost), "", _times(found), str(found[3]), ""])
    return markdown(("comparison", "cost", "claimed factor", "measured factor", "pairs", "verdict"), lines)


def spent(rows: Sequence[dict[str, str]]) -> str:
    """Return the table of each variant's costs."""
    lines = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        there = [row for row in own if float(row["reached"]) == 1.0]
        costs = [
            f"{np.mean([float(row[cost]) for row in there]):,.0f}" if there else ""
            for cost in ("trainings", "simulated_seconds")
        ]
        ends = [float(row["accuracy"]) for row in own]
        spread = f" ± {100 * np.std(ends, ddof=1):.1f}" if len(ends) > 1 else ""
        lines.append(
            [
                variant, f"{len(there)} of {len(own)}", *costs, f"{100 * np.mean(ends):.1f}{spread}",
                f"{np.mean([float(row['seconds']) for row in own]):,.0f}",
                f"{np.mean([float(row['staleness']) for row in own]):.1f}",
                f"{100 * np.mean([float(row['wasted']) for row in own]):.0f} %",
            ]
        )  # fmt: skip
    head = (
        "variant", "runs that reach 77 %", "trainings to 77 %", "simulated seconds to 77 %",
        "accuracy at the end (%)", "simulated seconds of the run", "mean staleness", "client seconds wasted",
    )  # fmt: skip
    return markdown(head, lines)


def _called(cost: str) -> str:
    return cost.replace("_", " ")


def written(text: str) -> str:
    """Return the page with new tables."""
    rows = read_rows(DATA)
    return put(put(text, "spent", spent(rows)), "claims", claims(rows))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--collect", type=Path, metavar="FOLDER", help="folder of the comparison")
    chosen = parser.parse_args()
    if chosen.collect is not None:
        collect(chosen.collect)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
