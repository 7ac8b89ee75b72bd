"""Rows for the page's charts, thinned to what the eye resolves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flsel.comparison.judging.analysis import Analysis, named
from flsel.comparison.judging.ranks import performance_profile
from flsel.comparison.judging.time_to_target import survival
from flsel.comparison.reporting.client_data import POINTS, Rows, client_data
from flsel.comparison.run_table import Run
from flsel.runner.cost_axes import COST_AXES

STEP, REACH = 8, 32
"""Points between marks of equal cost, and between the outermost of them at most."""


def chart_data(analysis: Analysis) -> dict[str, Rows]:
    """Return the rows of every chart by its name; each has ``scenario``, and ``variant`` where it has one."""
    cells = [(s, v) for s in analysis.scenarios for v in analysis.variants if analysis.of(v, s)]
    found: dict[str, Rows] = {
        "curves": [row for s, v in cells for row in _curve(analysis.of(v, s), analysis.curves)],
        "cost": _beside([row for s, v in cells for row in _cost(analysis, v, s)]),
        "pairs": _pairs(analysis),
        "intervals": _intervals(analysis),
        "arrivals": _arrivals(analysis),
        "survival": _survival(analysis),
        "ranks": _ranks(analysis),
        "profile": _profile(analysis),
        **client_data(analysis),
    }
    return {name: [_clean(row) for row in rows] for name, rows in found.items() if rows}


def _curve(runs: Sequence[Run], curves: Mapping[str, str]) -> Rows:
    length = min(len(run.columns["round"]) for run in runs)
    kept = np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))
    costs = {
        name: np.mean([run.columns[name][:length] for run in runs], axis=0)
        for name in COST_AXES
        if all(name in run.columns for run in runs)
    }
    tables = {
        name: np.array([run.columns[column][:length] for run in runs]) for name, column in curves.items()
    }
    rows = []
    for number, at in enumerate(kept):
        row = {"scenario": runs[0].scenario, "variant": runs[0].variant, "marked": number % 15 == 7}
        row |= {name: float(values[at]) for name, values in costs.items()}
        for name, table in tables.items():
            row[name] = float(table[:, at].mean())
            low, high = np.quantile(table[:, at], (0.25, 0.75))
            row[f"{name}_low"], row[f"{name}_high"] = float(low), float(high)
        rows.append(row)
    return rows


def _cost(analysis: Analysis, variant: str, scenario: str) -> Rows:
    score = analysis.summary(variant, scenario, analysis.main)
    if score is None:
        return []
    row: dict[str, Any] = {
        "scenario": scenario, "variant": variant, "score": score.mean.value,
        "low": score.mean.low, "high": score.mean.high,
    }  # fmt: skip
    for name in COST_AXES:
        found = analysis.summary(variant, scenario, f"total/{name}")
        if found is not None:
            row[name] = found.mean.value
    return [row]


def _beside(rows: Rows) -> Rows:
    """Add by how many points a mark is moved, so that variants of equal cost do not cover each other."""
    for name in COST_AXES:
        there = [row for row in rows if name in row]
        near = 0.01 * max((row[name] for row in there), default=0.0)
        for row in there:
            same = [r for r in there if r["scenario"] == row["scenario"] and abs(r[name] - row[name]) <= near]
            step = min(STEP, REACH / max(len(same) - 1, 1))
            row[f"beside_{name}"] = step * (same.index(row) - (len(same) - 1) / 2)
    return rows


def _pairs(analysis: Analysis) -> Rows:
    """Return every pair's difference in what decides: scores in their unit, or the ratio of costs."""
    return [
        {"scenario": scenario, "variant": variant, "seed": seed,
         "difference": math.exp(value) if d.kind == "ratio" else analysis.options.score.scale * value}
        for variant, scenario, d in named(analysis.differences, analysis.deciding)
        if d.paired
        for seed, value in zip(d.seeds, d.values, strict=True)
    ]  # fmt: skip


def _intervals(analysis: Analysis) -> Rows:
    rows = []
    for variant, scenario, d in named(analysis.differences, analysis.deciding):
        shown = analysis.against(variant, scenario, analysis.deciding) or d.shown
        scale = 1.0 if d.kind == "ratio" else analysis.options.score.scale
        ends = {"difference": shown.value, "low": shown.low, "high": shown.high}
        rows.append({"scenario": scenario, "variant": variant, **{k: scale * x for k, x in ends.items()}})
    return rows


def _arrivals(analysis: Analysis) -> Rows:
    rows = []
    for variant, scenario, r in named(analysis.reached, analysis.to_target):
        row: dict[str, Any] = {"scenario": scenario, "variant": variant, "reached": f"{r.reached} of {r.n}"}
        ends = {"median": r.median.value, "low": r.median.low, "high": r.median.high}
        row |= {key: min(x, r.horizon) if not math.isnan(x) else None for key, x in ends.items()}
        rows.append(row)
    return rows


def _survival(analysis: Analysis) -> Rows:
    return [
        {"scenario": scenario, "variant": variant, "spent": float(x), "reached": 1 - float(y)}
        for variant, scenario, r in named(analysis.reached, analysis.to_target)
        for x, y in zip(*survival(list(r.arrivals.values())), strict=True)
    ]


def _ranks(analysis: Analysis) -> Rows:
    ranking = analysis.ranking
    if ranking is None:
        return []
    best = float(ranking.mean_ranks.min())
    return [
        {"scenario": "", "variant": variant, "rank": float(value), "best": best,
         "limit": best + ranking.critical_difference if ranking.can_decide else math.inf}
        for variant, value in zip(analysis.variants, ranking.mean_ranks, strict=True)
    ]  # fmt: skip


def _profile(analysis: Analysis) -> Rows:
    """Return the share of runs, over all scenarios, that end better than a score; nothing of one scenario."""
    if len(analysis.scenarios) < 2:
        return []
    ends = {
        v: [x for s in analysis.scenarios if (found := analysis.summary(v, s, analysis.main))
            for x in found.values.values()]
        for v in analysis.variants
    }  # fmt: skip
    every = [x for values in ends.values() for x in values]
    if not every:
        return []
    at = np.linspace(min(every), max(every), POINTS)
    way = math.copysign(1.0, analysis.options.score.gains)
    return [
        {"scenario": "", "variant": v, "score": float(x), "share": float(y)}
        for v, values in ends.items()
        if values
        for x, y in zip(at, performance_profile(way * np.array(values), way * at), strict=True)
    ]


def _clean(row: dict[str, Any]) -> dict[str, Any]:
    """Write numbers with the digits that are seen; JSON has no NaN."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, float):
            value = float(f"{value:.5g}") if math.isfinite(value) else None
        found[name] = value
    return found


def packed(rows: Rows) -> dict[str, Any]:
    """Store rows by column, words by number, which takes a fraction of the room; the page unpacks them.

    Returns:
        ``size`` and ``columns``: lists of numbers, or ``{"words": [...], "at": [...]}``.
    """
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(name) for row in rows]
        if any(isinstance(value, str) for value in values):
            words = list(dict.fromkeys(values))
            number = {word: at for at, word in enumerate(words)}
            columns[name] = {"words": words, "at": [number[value] for value in values]}
        else:
            columns[name] = values
    return {"size": len(rows), "columns": columns}
