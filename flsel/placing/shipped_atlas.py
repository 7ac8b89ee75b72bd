"""The atlases that flsel brings along: their settings, their results, and what proves a pair."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flsel.comparison.grid import Grid, Scenario, Variant
from flsel.comparison.run_table import Run
from flsel.config.fingerprint import alike
from flsel.errors import UserError
from flsel.files.shipped import brought_along
from flsel.metrics import first_hit

MEASURES = ("accuracy", "worst", "rounds", "bytes")
"""What most atlases measure: test accuracy, training accuracy of the worst tenth of the clients; rounds and
bytes to the target."""
ACCURACIES = {"accuracy": "test/accuracy", "worst": "client_train/accuracy_worst10"}
"""Measures at the end of a run, by their columns."""
REACHED = "reached"
"""Whether a run reaches the target, where a cost to it decides. All other measures are such costs."""
BASE = "Uniform"
SKEWED = ("Dirichlet 0.1", "2SPC", "1SPC", "HiCS mix")
"""Partitions whose clients have few labels."""


@dataclass(frozen=True)
class Measurements:
    """Results of an atlas.

    Attributes:
        selectors: Their names.
        values: By measure, ``[scenarios, seeds, selectors]``; NaN where a run is missing.
    """

    selectors: tuple[str, ...]
    values: Mapping[str, np.ndarray]

    def of(self, measure: str, selector: str) -> np.ndarray:
        """Return a selector's values, ``[scenarios, seeds]``."""
        found: np.ndarray = self.values[measure][..., self.selectors.index(selector)]
        return found


@dataclass(frozen=True)
class ShippedAtlas:
    """An atlas.

    Attributes:
        name: ``synthetic``, ``fashion``, ``time``, ...
        title: What it compares.
        target: Test accuracy to reach.
        last: Evaluations in the mean at the end, and in the running mean to the target.
        config: Settings of all runs.
        scenarios: Changes to them, by name.
        fingerprints: Of what runs of a cell share, by ``scenario, seed``.
        measured: The committed results.
        parts: What the parts of a scenario's name are, such as its partition.
        decides: The measure by which selectors are ranked: ``accuracy``, or a cost to the target.
    """

    name: str
    title: str
    target: float
    last: int
    config: Mapping[str, Any]
    scenarios: Mapping[str, Mapping[str, Any]]
    fingerprints: Mapping[str, Mapping[str, str]]
    measured: Measurements
    parts: tuple[str, ...]
    decides: str = "accuracy"

    @property
    def measures(self) -> tuple[str, ...]:
        """What is measured of a run."""
        return tuple(self.measured.values)

    @property
    def shown(self) -> list[str]:
        """What means are shown of, what decides first."""
        return [self.decides, *(name for name in self.measures if name not in (self.decides, REACHED))]

    @property
    def most_seeds(self) -> int:
        """Seeds that the committed runs have."""
        return int(self.measured.values["accuracy"].shape[1])

    def grid(self, variants: tuple[Variant, ...], seeds: int) -> Grid:
        """Return the runs of variants in every scenario with seeds 1 to ``seeds``."""
        scenarios = tuple(Scenario(name, changes) for name, changes in self.scenarios.items())
        return Grid(dict(self.config), variants, scenarios, tuple(range(1, seeds + 1)))

    def measure(self, run: Run) -> dict[str, float]:
        """Measure a complete run as the committed ones were; a run that does not arrive counts as its end."""
        columns = run.columns
        accuracy = columns["test/accuracy"]
        hit = first_hit(accuracy, self.target, window=self.last)
        at = -1 if hit is None else hit
        ends = {
            name: float(columns[column][-self.last :].mean())
            for name, column in ACCURACIES.items()
            if name in self.measures
        }
        known = ends | {REACHED: float(hit is not None)}
        return {name: known[name] if name in known else float(columns[name][at]) for name in self.measures}

    def is_paired(self, run: Run) -> bool:
        """Tell whether a run had the data, the initial model and the availability of the committed ones."""
        kept = self.fingerprints[f"{run.scenario}, {run.seed}"]
        seen = run.summary.get("fingerprints", {})
        return all(alike(str(seen.get(name, "")), text) for name, text in kept.items())

    def repeats(self, run: Run) -> bool:
        """Tell whether a run of the baseline has the committed results, up to their six digits."""
        at = list(self.scenarios).index(run.scenario), run.seed - 1
        return self.is_paired(run) and all(
            math.isclose(value, self.measured.of(name, BASE)[at], rel_tol=2e-5)
            for name, value in self.measure(run).items()
        )


def atlas_names() -> list[str]:
    """Return the names of the atlases that flsel brings along."""
    return sorted(path.stem for path in (brought_along("atlas") / "shipped").glob("*.csv"))


def read_atlas(name: str) -> ShippedAtlas:
    """Read an atlas.

    Raises:
        UserError: If there is none of this name.
    """
    if name not in atlas_names():
        raise UserError(f"atlas must be one of {', '.join(atlas_names())}, got {name!r}.")
    folder: Path = brought_along("atlas") / "shipped"
    plain = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    head = list(rows[0])
    parts, measures = head[: head.index("seed")], head[head.index("selector") + 1 :]
    found = measurements(rows, tuple(plain["scenarios"]), parts, measures)
    return ShippedAtlas(name, measured=found, parts=tuple(parts), **plain)


def measurements(
    rows: list[dict[str, str]], scenarios: tuple[str, ...], parts: Sequence[str], measures: Sequence[str]
) -> Measurements:
    """Make arrays of rows, of which each is a run.

    Args:
        rows: The rows.
        scenarios: Names of the scenarios.
        parts: Columns that make the name of a scenario.
        measures: Columns of results.
    """
    selectors = tuple(dict.fromkeys(row["selector"] for row in rows))
    seeds = max(int(row["seed"]) for row in rows)
    values = {name: np.full((len(scenarios), seeds, len(selectors)), np.nan) for name in measures}
    for row in rows:
        scenario = scenarios.index(", ".join(row[part] for part in parts))
        place = scenario, int(row["seed"]) - 1, selectors.index(row["selector"])
        for name in measures:
            values[name][place] = float(row[name])
    return Measurements(selectors, values)
