"""Tune an atlas's selectors with an equal budget each, and execute what was found under the atlas's seeds.

    python benchmarks/tuned.py atlas_fashion                # search, execute, write docs/results/data
    python benchmarks/tuned.py atlas_fashion --collect      # write only

A selector gets its defaults and random draws from its search file, judged by validation data under seeds of
their own; the best goes to the seeds of the atlas, where the whole training data is used. Resumable.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import yaml
from atlas import ATLASES
from evidence import declare, execute_runs, experiments
from pages import options, read_rows

from flsel.comparison.grid import FILE, Cell, Grid, Scenario, Variant
from flsel.config import RunConfig
from flsel_tune.space_file import make_space, read_space

PLACES = ("Dirichlet 0.1, MDF", "2SPC, YMF", "HiCS mix, IDL")
TRIALS, VALIDATION, LAST = 10, 0.2, 5
SEARCH_SEEDS, SEEDS = (101, 102), (1, 2, 3, 4, 5)
SPACES: dict[str, str | dict[str, object]] = {
    "PowD": "powd",
    "AFL": "afl",
    "ClusteredSampling": "clustered",
    "DivFL": "divfl",
    "FedCor": "fedcor",
    "FedGS": "fedgs",
    "FedPNS": "fedpns",
    "FedCat": "fedcat",
    # Its file's temperatures are for another learning rate.
    "HiCS": {
        "selector.lam": {"type": "uniform", "low": 0.0, "high": 1.0},
        "selector.gamma0": {"type": "uniform", "low": 0.0, "high": 8.0},
        "selector.signal": {"type": "choice", "values": ["bias", "weight_mean"]},
        "selector.temperature_per_client": {"type": "choice", "values": [True, False]},
    },
}


def trials(selector: str) -> list[dict[str, object]]:
    """Return what is tried: nothing changed, then random draws."""
    space = SPACES[selector]
    config = RunConfig.from_dict(RunConfig().to_dict(), {"selector": selector}).to_dict()
    dimensions = make_space(read_space(space) if isinstance(space, str) else space, config)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    return [{}, *(dict(dimensions(study.ask())) for _ in range(TRIALS - 1))]


def search_grid(atlas: Grid, place: Scenario) -> Grid:
    """Return all trials of all selectors in one scenario of the atlas, with validation data held out."""
    changes = {"data.validation": VALIDATION, "evaluation.per_client": False}
    config = RunConfig.from_dict(atlas.config, changes).to_dict()
    usual = {variant.name: variant.changes for variant in atlas.variants}
    variants = tuple(
        Variant(f"{selector} {k}", {**usual[selector], **tried})
        for selector in SPACES
        for k, tried in enumerate(trials(selector))
    )
    return Grid(config, variants, (place,), SEARCH_SEEDS)


def best(grid: Grid, folder: Path) -> dict[str, tuple[Variant, float]]:
    """Return each selector's best trial and its validation accuracy; one that diverged counts as zero."""
    found: dict[str, tuple[Variant, float]] = {}
    for variant in grid.variants:
        cells = [Cell(variant.name, grid.scenarios[0].name, seed) for seed in grid.seeds]
        score = float(np.mean([_last(folder / cell.folder, "validation/accuracy") for cell in cells]))
        selector = variant.name.rpartition(" ")[0]
        if selector not in found or score > found[selector][1]:
            found[selector] = (variant, score)
    return found


def _last(run: Path, column: str) -> float:
    if not (run / "summary.json").exists():
        return 0.0
    return float(np.mean([float(row[column]) for row in read_rows(run / "metrics.csv")[-LAST:]]))


def main() -> None:
    """Search, execute, collect."""
    parser = options(__doc__)
    parser.add_argument("atlas", choices=list(ATLASES), help="whose selectors")
    parser.add_argument("--folder", type=Path, help="where runs are; comparisons/ATLAS_tuned if not given")
    parser.add_argument("--collect", action="store_true", help="execute nothing")
    chosen = parser.parse_args()
    top = chosen.folder or Path(f"comparisons/{chosen.atlas}_tuned")
    atlas = experiments()[chosen.atlas].grid()
    rows = []
    for name in PLACES:
        place = next(scenario for scenario in atlas.scenarios if scenario.name == name)
        slug = name.replace(", ", "_").replace(" ", "_")
        search, held = search_grid(atlas, place), top / f"{slug}_search"
        if not chosen.collect:
            _execute(chosen.atlas, search, held)
        winners = best(search, held)
        tuned = tuple(replace(variant, name=selector) for selector, (variant, _) in winners.items())
        final = Grid(search.config | {"data": atlas.config["data"]}, tuned, (place,), SEEDS)
        folder = top / slug
        if not chosen.collect:
            _execute(chosen.atlas, final, folder)
        for cell in final.cells():
            variant, score = winners[cell.variant]
            accuracy = _last(folder / cell.folder, "test/accuracy")
            settings = json.dumps({k: v for k, v in variant.changes.items() if k != "selector"})
            rows.append(
                [*name.split(", "), cell.seed, cell.variant, f"{accuracy:.6g}", f"{score:.6g}", settings]
            )
    with ATLASES[chosen.atlas].tuned.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["partition", "availability", "seed", "selector", "accuracy", "validation", "settings"]
        )
        table.writerows(rows)


def _execute(name: str, grid: Grid, folder: Path) -> None:
    if not (folder / FILE).exists():
        declare(experiments()[name], folder, grid, f"python benchmarks/tuned.py {name}")
    kept = yaml.safe_load((folder / FILE).read_text())["variants"]
    assert list(kept) == [variant.name for variant in grid.variants], f"{folder} holds another search"
    execute_runs(folder)


if __name__ == "__main__":
    main()
