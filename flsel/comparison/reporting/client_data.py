"""Rows for the page's charts of clients, thinned to what the eye resolves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.run_table import Run
from flsel.data.heterogeneity import label_entropy
from flsel.runner.diagnostics import RecordedDiagnostic

Rows = list[dict[str, Any]]
POINTS = 120
"""Points of a curve."""
PERIODS = 10
"""Columns of the map of participation: so few that each holds several rounds."""
GROUPS = 5
"""Groups of clients by size or entropy."""
CLEARLY = 0.25
"""How far from 1 a group's participation is to be for a chart of it; chance moves it by about a tenth."""
CELLS = 40
"""Lines and columns of a heat map; more are averages of neighbours, or some of them."""


def client_data(analysis: Analysis) -> dict[str, Rows]:
    """Return the rows of every chart of clients by its name, none where it would show nothing.

    All but the groups of clients are those of the first seed.
    """
    cells = [analysis.of(v, s) for s in analysis.scenarios for v in analysis.variants]
    runs = [found[0] for found in cells if found]

    def sizes(labels: np.ndarray) -> np.ndarray:
        return np.asarray(labels.sum(axis=1), dtype=float)

    return {
        "participation": [row for run in runs for row in _participation(run)],
        "entropies": _telling([row for found in cells for row in _groups(found, label_entropy)]),
        "sizes": _telling([row for found in cells for row in _groups(found, sizes)]),
        "estimates": [row for run in runs for d in _told(run, "entropy") for row in _estimates(run, d)],
        "beliefs": [row for run in runs for d in _told(run, "client") for row in _beliefs(run, d)],
        "relations": [row for run in runs for d in _told(run, "pair") for row in _relations(run, d)],
        "visits": [row for run in runs for d in _told(run, "visit") for row in _visits(run, d)],
        "partition": [row for s in analysis.scenarios for row in _partition(analysis, s)],
        "available": [row for s in analysis.scenarios for row in _available(analysis, s)],
    }


def _told(run: Run, kind: str) -> list[RecordedDiagnostic]:
    """Return the first diagnostic of a kind, as a list: one is drawn."""
    return [d for d in ([] if run.result is None else run.result.diagnostics) if d.kind == kind][:1]


def _who(run: Run) -> dict[str, Any]:
    return {"scenario": run.scenario, "variant": run.variant}


def _by_size(run: Run, clients: np.ndarray) -> np.ndarray:
    """Order clients (ids, int64 ``[n]``) from the fewest examples to the most."""
    if run.labels is None:
        return np.arange(len(clients))
    return np.argsort(run.labels[clients].sum(axis=1), kind="stable")


def _some(count: int, most: int = CELLS) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _estimates(run: Run, d: RecordedDiagnostic) -> Rows:
    if run.labels is None:
        return []
    true = label_entropy(run.labels[d.clients])
    return [
        {**_who(run), "client": int(client), "true": float(one), "estimated": float(other)}
        for client, one, other in zip(d.clients, true, d.values[-1], strict=True)
        if np.isfinite(other)
    ]


def _beliefs(run: Run, d: RecordedDiagnostic) -> Rows:
    order = _by_size(run, d.clients)
    order = order[_some(len(order))]
    return [
        {**_who(run), "what": _words(d), "round": int(round), "client": line, "value": float(row[at])}
        for round, row in zip(d.rounds, d.values, strict=True)
        for line, at in enumerate(order)
        if np.isfinite(row[at])
    ]


def _relations(run: Run, d: RecordedDiagnostic) -> Rows:
    order = np.arange(len(d.clients))
    if run.labels is not None:
        order = np.argsort(run.labels[d.clients].argmax(axis=1), kind="stable")
    order = order[_some(len(order))]
    return [
        {**_who(run), "what": _words(d), "row": row, "column": column, "value": float(d.values[one, other])}
        for row, one in enumerate(order)
        for column, other in enumerate(order)
        if np.isfinite(d.values[one, other])
    ]


def _visits(run: Run, d: RecordedDiagnostic) -> Rows:
    return [
        {**_who(run), "what": _words(d), "client": int(d.clients[at]), "position": position + 1,
         "value": float(value)}
        for at in _some(len(d.clients))
        for position, value in enumerate(d.values[at, :CELLS])
    ]  # fmt: skip


def _words(d: RecordedDiagnostic) -> str:
    return f"{d.words} ({d.unit})" if d.unit else d.words


def _participation(run: Run) -> Rows:
    """Return in what share of the rounds clients took part, over the run; clients from the smallest up."""
    clients = len(run.counts)
    order = _by_size(run, np.arange(clients))
    place = np.empty(clients, dtype=int)
    place[order] = np.arange(clients)
    last = max((step.round for step in run.rounds), default=0) + 1
    columns, lines = min(PERIODS, last), min(CELLS, clients)
    column_of, line_of = np.arange(last) * columns // last, np.arange(clients) * lines // clients
    table = np.zeros((lines, columns))
    for step in run.rounds:
        for client in step.clients:
            table[line_of[place[client]], column_of[step.round]] += 1
    table /= np.outer(np.bincount(line_of), np.bincount(column_of))
    return [
        {**_who(run), "round": float(np.flatnonzero(column_of == column).mean() + 1),
         "client": int(np.flatnonzero(line_of == line)[0]), "share": float(table[line, column])}
        for line in range(lines)
        for column in range(columns)
        if table[line, column]
    ]  # fmt: skip


def _groups(runs: Sequence[Run], measured: Callable[[np.ndarray], np.ndarray]) -> Rows:
    """Return how often fifths of the clients took part, relative to the mean of all; means over seeds.

    Args:
        runs: One variant's in one scenario, by seed.
        measured: Maps label counts ``[N, C]`` to what clients are ordered by, ``[N]``.
    """
    at, shares = list[list[float]](), list[list[float]]()
    for run in runs:
        if run.labels is None or not run.counts.any() or np.ptp(measured(run.labels)) < 1e-9:
            continue
        values, relative = measured(run.labels), run.counts / run.counts.mean()
        parts = np.array_split(np.argsort(values, kind="stable"), min(GROUPS, len(values)))
        at.append([float(values[part].mean()) for part in parts])
        shares.append([float(relative[part].mean()) for part in parts])
    if len({len(row) for row in at}) != 1:
        return []
    means = zip(np.mean(at, axis=0), np.mean(shares, axis=0), strict=True)
    return [{**_who(runs[0]), "at": float(x), "share": float(y)} for x, y in means]


def _telling(rows: Rows) -> Rows:
    """Return rows of groups if any group takes part clearly more or less often than the mean."""
    return rows if any(abs(row["share"] - 1) > CLEARLY for row in rows) else []


def _first(analysis: Analysis, scenario: str) -> Run | None:
    return next((r for r in analysis.runs if (r.scenario, r.status) == (scenario, "complete")), None)


def _partition(analysis: Analysis, scenario: str) -> Rows:
    run = _first(analysis, scenario)
    if run is None or run.labels is None:
        return []
    labels = run.labels
    lines = min(CELLS, len(labels))
    blocks = np.array_split(labels, lines)
    rows, first = [], 0
    for block in blocks:
        mix = block.sum(axis=0) / max(block.sum(), 1)
        rows += [
            {"scenario": scenario, "client": first, "label": label, "share": float(share)}
            for label, share in enumerate(mix[:CELLS])
            if share > 0
        ]
        first += len(block)
    return rows


def _available(analysis: Analysis, scenario: str) -> Rows:
    run = _first(analysis, scenario)
    if run is None:
        return []
    kept = _some(len(run.rounds), POINTS)
    steps = [run.rounds[at] for at in kept]
    if len({step.available for step in steps}) < 2:
        return []
    return [{"scenario": scenario, "round": step.round, "available": step.available} for step in steps]
