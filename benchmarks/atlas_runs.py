"""An atlas's measurements: from its runs to a file, and from the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pages import read_rows, update_rows, whole_blocks

from flsel.comparison.comparison_file import read_declaration
from flsel.comparison.judging.time_to_target import first_at

MEASURES = ("accuracy", "cheap", "worst", "rounds", "bytes", "passes")
"""Test accuracy: at the end, after half of Uniform's bytes, of the worst tenth; then costs to the target."""
LAST = 5
CHANCE = 0.1
BASE = "Uniform"
BY_SIZE = ("LDF", "MDF")
"""Modes by client size. If all clients have the same size, all are available under these modes."""
EVERYBODY, UNEQUAL = "IDL", ("HiCS mix", "natural", "log-normal")


def collect(folder: Path, path: Path) -> None:
    """Add a row a run to the file of measurements, of every scenario and seed that has all selectors."""
    _, judging, _ = read_declaration(folder)
    assert judging.target is not None
    head = ["partition", "availability", "seed", "selector", *MEASURES]
    rows = []
    for scenario, seed, block in whole_blocks(folder):
        half = _metrics(block[BASE])["bytes"][-1] / 2
        for name, run in block.items():
            numbers = [f"{value:.6g}" for value in _measured(_metrics(run), judging.target, half)]
            rows.append([*scenario.split(", "), seed, name, *numbers])
    update_rows(path, head, rows, key=4)


def _metrics(folder: Path) -> dict[str, np.ndarray]:
    rows = read_rows(folder / "metrics.csv")
    columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    return {**columns, "bytes": columns["ledger/bytes_down"] + columns["ledger/bytes_up"]}


def _measured(metrics: dict[str, np.ndarray], target: float, budget: float) -> list[float]:
    """Return what :data:`MEASURES` names; what asks for more than the budget at once counts as 0.1."""
    accuracy = metrics["test/accuracy"]
    within = accuracy[metrics["bytes"] <= budget][-LAST:]
    costs = [
        first_at(target, metrics[name], accuracy, LAST).at for name in ("round", "bytes", "ledger/passes")
    ]
    cheap = float(within.mean()) if len(within) else CHANCE
    return [float(accuracy[-LAST:].mean()), cheap, _last(metrics["client_train/accuracy_worst10"]), *costs]


def _last(values: np.ndarray) -> float:
    return float(values[-LAST:].mean())


@dataclass(frozen=True)
class Atlas:
    """The measurements.

    Attributes:
        selectors: Their names.
        scenarios: Partition and mode of each.
        seeds: Of each scenario.
        all_seeds: Of the second axis of the values.
        values: By measure, ``[scenarios, seeds, selectors]``; NaN where a seed is missing.
    """

    selectors: list[str]
    scenarios: list[tuple[str, str]]
    seeds: list[list[int]]
    all_seeds: list[int]
    values: dict[str, np.ndarray]

    def gains(self, measure: str = "accuracy") -> np.ndarray:
        """Return the difference to the baseline in points, mean over seeds, ``[scenarios, selectors]``."""
        values = self.values[measure]
        base = values[..., self.selectors.index(BASE), None]
        means: np.ndarray = 100 * np.nanmean(values - base, axis=1)
        return means


def read(path: Path, *, merged: bool = True) -> Atlas:
    """Read the file of measurements.

    Args:
        path: The file.
        merged: Name a scenario by who is there in it, and leave out one that another is already.
    """
    rows = read_rows(path)
    if merged:
        rows = _merged(rows)
    selectors = list(dict.fromkeys(row["selector"] for row in rows))
    scenarios = list(dict.fromkeys((row["partition"], row["availability"]) for row in rows))
    seeds = sorted({int(row["seed"]) for row in rows})
    values = {name: np.full((len(scenarios), len(seeds), len(selectors)), np.nan) for name in MEASURES}
    for row in rows:
        scenario = scenarios.index((row["partition"], row["availability"]))
        place = scenario, seeds.index(int(row["seed"])), selectors.index(row["selector"])
        for name in MEASURES:
            values[name][place] = float(row[name])
    had = [
        sorted({int(r["seed"]) for r in rows if (r["partition"], r["availability"]) == s}) for s in scenarios
    ]
    return Atlas(selectors, scenarios, had, seeds, values)


def _merged(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    first: dict[tuple[str, str], str] = {}
    kept = []
    for row in rows:
        everybody = row["availability"] in BY_SIZE and row["partition"] not in UNEQUAL
        mode = EVERYBODY if everybody else row["availability"]
        if first.setdefault((row["partition"], mode), row["availability"]) == row["availability"]:
            kept.append(row | {"availability": mode})
    return kept
