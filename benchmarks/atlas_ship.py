"""Make the atlases that travel with the package of their experiments and committed measurements.

    python benchmarks/atlas_ship.py synthetic sizes   # docs/results/data -> atlas/shipped
    FLSEL_DATA=DIR python benchmarks/atlas_ship.py fashion mnist

Each cell keeps the fingerprints of its data, initial model and availability, by which ``flsel place`` proves
that its runs are paired with the committed ones.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from evidence import experiments
from pages import read_rows

from flsel.comparison.grid import Grid
from flsel.execution.executor import Sources
from flsel.placing.shipped_atlas import MEASURES
from flsel.runner.build import build
from flsel.runner.digest import fingerprints, rounded_digest

ROOT = Path(__file__).resolve().parents[1]


def prints(grid: Grid) -> dict[str, dict[str, str]]:
    """Return the fingerprints of every cell, by scenario and seed."""
    found, sources = {}, Sources()
    for cell in replace(grid, variants=grid.variants[:1]).cells():
        config = grid.run_config(cell, ROOT)
        server = build(config, sources.get(config)).server
        own = fingerprints(server.federation, rounded_digest(server.params))
        found[f"{cell.scenario}, {cell.seed}"] = own
    return found


def ship(name: str) -> None:
    """Write an atlas: its definition, and a row for each run."""
    experiment = experiments()[f"atlas_{name}"]
    rows = read_rows(ROOT / f"docs/results/data/atlas_{name}.csv")
    grid = experiment.grid(f"1..{max(int(row['seed']) for row in rows)}")
    lines = [",".join(["partition", "availability", "seed", "selector", *MEASURES])]
    lines += [",".join([row[column] for column in lines[0].split(",")]) for row in rows]
    folder = ROOT / "atlas/shipped"
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    plain = {
        "title": experiment.title,
        "target": experiment.judging["target"],
        "last": experiment.judging["last"],
        "config": grid.config,
        "scenarios": {scenario.name: dict(scenario.changes) for scenario in grid.scenarios},
        "fingerprints": prints(grid),
    }
    (folder / f"{name}.json").write_text(json.dumps(plain, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="ATLAS")
    for name in parser.parse_args().names:
        ship(name)


if __name__ == "__main__":
    main()
