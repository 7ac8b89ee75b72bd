"""What a selector's questions cost in simulated seconds to a target, from the runs of a comparison.

    python benchmarks/questions.py comparisons/atlas_time --target 0.7 --last 5

*Charged* is a run's clock; *free* is the same run without the seconds in which the server waited for answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from measure import table

from flsel.metrics import first_hit
from flsel.runner.result import Result


def charged_and_free(result: Result, target: float, last: int) -> tuple[float, float] | None:
    """Return a run's simulated seconds to a target, with and without questions; None if it never arrives."""
    hit = first_hit(result.history["test/accuracy"], target, window=last)
    if hit is None:
        return None
    until = result.history["round"][hit]
    asked = sum(played.questions or 0.0 for played in result.rounds if played.round < until)
    charged = float(result.history["clock/seconds"][hit])
    return charged, charged - asked


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("comparison", type=Path)
    parser.add_argument("--target", type=float, default=0.7)
    parser.add_argument("--last", type=int, default=5, help="evaluations in the running mean")
    chosen = parser.parse_args(arguments)
    found: dict[tuple[str, str], list[tuple[float, float] | None]] = {}
    for summary in sorted(chosen.comparison.glob("runs/*/*/s*/summary.json")):
        setting, variant = summary.parts[-4], summary.parts[-3]
        result = Result.load(summary.parent)
        found.setdefault((setting, variant), []).append(charged_and_free(result, chosen.target, chosen.last))
    rows = []
    for (setting, variant), runs in found.items():
        arrived = np.array([run for run in runs if run is not None]).reshape(-1, 2)
        cells = [f"{median(column):.0f}" for column in arrived.T] if len(arrived) else ["-", "-"]
        rows.append([setting, variant, f"{len(arrived)}/{len(runs)}", *cells])
    head = ("setting", "selector", "arrived", "simulated seconds, charged", "free")
    print(f"Medians of the runs that reach {100 * chosen.target:g} %.\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
