"""What the page's charts draw, as plain rows: thinned to what the eye resolves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flsel.comparison.arrival import survival
from flsel.comparison.measures import COSTS
from flsel.comparison.reading import Run
from flsel.comparison.results import Analysis, arrival_name
from flsel.data.heterogeneity import label_entropy

Rows = list[dict[str, Any]]
POINTS = 120
"""Points of a curve."""
CELLS = 40
"""Rows and columns of a heat map; more are averages of neighbours."""
_CURVES = {"accuracy": "test/accuracy", "loss": "test/loss"}


def chart_data(analysis: Analysis) -> dict[str, Rows]:
    """Return the rows of every chart by its name; each has ``setting``, and ``variant`` where it has one."""
    cells = [(s, v) for s in analysis.settings for v in analysis.variants if analysis.of(v, s)]
    found: dict[str, Rows] = {
        "curves": [row for s, v in cells for row in _curve(analysis.of(v, s))],
        "cost": [row for s, v in cells for row in _cost(analysis, v, s)],
        "pairs": _pairs(analysis),
        "intervals": _intervals(analysis),
        "arrivals": _arrivals(analysis),
        "survival": _survival(analysis),
        "ranks": _ranks(analysis),
        "participation": [row for s, v in cells for row in _participation(analysis.of(v, s)[0])],
        "clients": [row for s, v in cells for row in _clients(analysis.of(v, s)[0])],
        "partition": [row for s in analysis.settings for row in _partition(analysis, s)],
        "available": [row for s in analysis.settings for row in _available(analysis, s)],
    }
    return {name: [_clean(row) for row in rows] for name, rows in found.items() if rows}


def _curve(runs: Sequence[Run]) -> Rows:
    length = min(len(run.columns["round"]) for run in runs)
    kept = np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))
    costs = {
        name: np.mean([run.columns[name][:length] for run in runs], axis=0)
        for name in COSTS
        if all(name in run.columns for run in runs)
    }
    tables = {
        name: np.array([run.columns[column][:length] for run in runs]) for name, column in _CURVES.items()
    }
    rows = []
    for number, at in enumerate(kept):
        row = {"setting": runs[0].setting, "variant": runs[0].variant, "marked": number % 15 == 7}
        row |= {name: float(values[at]) for name, values in costs.items()}
        for name, table in tables.items():
            row[name] = float(table[:, at].mean())
            row[f"{name}_low"], row[f"{name}_high"] = float(table[:, at].min()), float(table[:, at].max())
        rows.append(row)
    return rows


def _cost(analysis: Analysis, variant: str, setting: str) -> Rows:
    accuracy = analysis.summary(variant, setting, analysis.main)
    if accuracy is None:
        return []
    row: dict[str, Any] = {
        "setting": setting, "variant": variant, "accuracy": accuracy.mean.value,
        "low": accuracy.mean.low, "high": accuracy.mean.high,
    }  # fmt: skip
    for name in COSTS:
        found = analysis.summary(variant, setting, f"total/{name}")
        if found is not None:
            row[name] = found.mean.value
    return [row]


def _pairs(analysis: Analysis) -> Rows:
    """Return every pair's difference in the main measure, in points."""
    rows = []
    for (setting, variant), pairs in analysis.pairs.items():
        if pairs.paired:
            for ours, theirs in zip(pairs.ours, pairs.theirs, strict=True):
                one, two = (analysis.values[str(run.folder)][analysis.main] for run in (ours, theirs))
                difference = 100 * (one - two)
                rows.append(
                    {"setting": setting, "variant": variant, "seed": ours.seed, "difference": difference}
                )
    return rows


def _intervals(analysis: Analysis) -> Rows:
    rows = []
    for d in analysis.differences:
        if d.measure == analysis.main:
            shown = d.shown.map(lambda x: 100 * x)
            rows.append(
                {"setting": d.setting, "variant": d.variant, "difference": shown.value, "low": shown.low,
                 "high": shown.high}
            )  # fmt: skip
    return rows


def _arrivals(analysis: Analysis) -> Rows:
    name = arrival_name("rounds", analysis.options.last)
    rows = []
    for r in analysis.reached:
        if r.measure == name:
            median, cut = r.found.median, r.found.horizon
            arrived = f"{r.found.reached} of {r.found.n}"
            row: dict[str, Any] = {"setting": r.setting, "variant": r.variant, "reached": arrived}
            ends = {"median": median.value, "low": median.low, "high": median.high}
            row |= {key: min(value, cut) if not math.isnan(value) else None for key, value in ends.items()}
            rows.append(row)
    return rows


def _survival(analysis: Analysis) -> Rows:
    name = arrival_name("rounds", analysis.options.last)
    rows = []
    for r in analysis.reached:
        if r.measure == name:
            at, share = survival(list(r.arrivals.values()))
            rows += [
                {"setting": r.setting, "variant": r.variant, "rounds": float(x), "reached": 1 - float(y)}
                for x, y in zip(at, share, strict=True)
            ]
    return rows


def _ranks(analysis: Analysis) -> Rows:
    ranking = analysis.ranking
    if ranking is None:
        return []
    best = float(ranking.mean_ranks.min())
    return [
        {"setting": "", "variant": variant, "rank": float(value), "best": best,
         "limit": best + ranking.critical_difference}
        for variant, value in zip(analysis.variants, ranking.mean_ranks, strict=True)
    ]  # fmt: skip


def _participation(run: Run) -> Rows:
    """Return how often clients took part over the rounds; clients from the smallest to the largest."""
    clients = len(run.counts)
    order = np.arange(clients) if run.labels is None else np.argsort(run.labels.sum(axis=1), kind="stable")
    place = np.empty(clients, dtype=int)
    place[order] = np.arange(clients)
    last = max((played.round for played in run.rounds), default=0) + 1
    columns, lines = min(CELLS, last), min(CELLS, clients)
    table = np.zeros((lines, columns))
    for played in run.rounds:
        for client in played.clients:
            table[place[client] * lines // clients, played.round * columns // last] += 1
    per = (last / columns) * (clients / lines)
    return [
        {"setting": run.setting, "variant": run.variant, "round": (column + 0.5) * last / columns,
         "client": int(line * clients / lines), "share": table[line, column] / per}
        for line in range(lines)
        for column in range(columns)
        if table[line, column]
    ]  # fmt: skip


def _clients(run: Run) -> Rows:
    if run.labels is None:
        return []
    sizes, entropies = run.labels.sum(axis=1), label_entropy(run.labels)
    kept = np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), 200)).round().astype(int))
    counts = run.counts
    return [
        {"setting": run.setting, "variant": run.variant, "client": int(client), "times": int(counts[client]),
         "examples": int(sizes[client]), "entropy": float(entropies[client])}
        for client in kept
    ]  # fmt: skip


def _first(analysis: Analysis, setting: str) -> Run | None:
    return next((r for r in analysis.runs if (r.setting, r.status) == (setting, "complete")), None)


def _partition(analysis: Analysis, setting: str) -> Rows:
    run = _first(analysis, setting)
    if run is None or run.labels is None:
        return []
    labels = run.labels
    lines = min(CELLS, len(labels))
    blocks = np.array_split(labels, lines)
    rows, first = [], 0
    for block in blocks:
        mix = block.sum(axis=0) / max(block.sum(), 1)
        rows += [
            {"setting": setting, "client": first, "label": label, "share": float(share)}
            for label, share in enumerate(mix[:CELLS])
            if share > 0
        ]
        first += len(block)
    return rows


def _available(analysis: Analysis, setting: str) -> Rows:
    run = _first(analysis, setting)
    if run is None:
        return []
    kept = np.unique(np.linspace(0, len(run.rounds) - 1, min(len(run.rounds), POINTS)).round().astype(int))
    steps = [run.rounds[at] for at in kept]
    return [{"setting": setting, "round": step.round, "available": step.available} for step in steps]


def _clean(row: dict[str, Any]) -> dict[str, Any]:
    """Write numbers with the digits that are seen; JSON has no NaN."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, float):
            value = float(f"{value:.5g}") if math.isfinite(value) else None
        found[name] = value
    return found
