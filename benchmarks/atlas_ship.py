"""Make the atlases that travel with the package of their experiments and committed measurements.

    python benchmarks/atlas_ship.py synthetic sizes   # docs/results/data -> atlas/shipped
    FLSEL_DATA=DIR python benchmarks/atlas_ship.py fashion mnist time

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


def _in_seconds(row: dict[str, str]) -> dict[str, str]:
    """Return a row of the atlas in simulated seconds by the names that all atlases have."""
    share = f"{float(row['accuracy']) / 100:.6g}"
    return row | {"accuracy": share, "simulated_seconds": row["seconds"]}


def ship(name: str) -> None:
    """Write an atlas: its definition, and a row for each run."""
    experiment = experiments()[f"atlas_{name}"]
    rows = read_rows(ROOT / f"docs/results/data/atlas_{name}.csv")
    parts, measures, more = ["partition", "availability"], list(MEASURES), {}
    if name == "time":  # of its two kinds of over-selection, which are never pooled, the one without
        rows = [_in_seconds(row) for row in rows if row["asked"] == "K"]
        parts, measures = ["devices", *parts], ["reached", "accuracy", "rounds", "simulated_seconds"]
        more = {"decides": "simulated_seconds"}
    grid = experiment.grid(f"1..{max(int(row['seed']) for row in rows)}")
    known = {", ".join(row[part] for part in parts) for row in rows}
    scenarios = [replace(each, name=each.name.removesuffix(", K")) for each in grid.scenarios]
    grid = replace(grid, scenarios=tuple(each for each in scenarios if each.name in known))
    lines = [",".join([*parts, "seed", "selector", *measures])]
    lines += [",".join([row[column] for column in lines[0].split(",")]) for row in rows]
    folder = ROOT / "atlas/shipped"
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    plain = {
        "title": experiment.title,
        "target": experiment.judging["target"],
        "last": experiment.judging["last"],
        **more,
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
