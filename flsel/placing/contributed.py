"""All that is known of an atlas: the committed selectors, and placements that others contributed."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flsel.comparison.judging.estimates import Estimate
from flsel.errors import UserError, users_code
from flsel.files.shipped import brought_along
from flsel.placing.placement import distinct_scenarios, place_runs
from flsel.placing.placement_report import FORMAT, all_table, cells, headings, key_of
from flsel.placing.shipped_atlas import (
    ACCURACIES,
    BASE,
    Measurements,
    ShippedAtlas,
    atlas_names,
    measurements,
    read_atlas,
)

CONTRIBUTED = "contributed"


def contributions(folder: Path | None = None) -> list[dict[str, Any]]:
    """Read the JSON files of contributed placements, in the order of their names.

    Args:
        folder: Where they are; None is ``atlas/contributed``, which flsel brings along.

    Raises:
        UserError: If a file is damaged, or its rows are missing or say something else.
    """
    place = brought_along("atlas") / "contributed" if folder is None else folder
    return [_read(path) for path in sorted(place.glob("*.json"))]


def _read(path: Path) -> dict[str, Any]:
    """Read a placement, and check its numbers by its rows."""
    rows = path.with_suffix(".csv")
    if not rows.is_file():
        raise UserError(f"{path} lacks its rows: put {rows.name} beside it.")
    with users_code(f"{path} is no placement that flsel place wrote", reads=True):
        plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if plain["format"] != FORMAT or not plain["entries"]:
            raise UserError(f"{path} is of another format; place the selector again.")
        paired, seeds = bool(plain["paired"]), int(plain["seeds"])
        atlas_name, _ = plain["atlas"], [entry["tuned"] for entry in plain["entries"].values()]
    if atlas_name not in atlas_names():
        raise UserError(f"{path} is of the atlas {atlas_name!r}, and there is none of this name.")
    atlas = read_atlas(atlas_name)
    with users_code(f"{path} is no placement that flsel place wrote", reads=True):
        entries = {
            name: {measure: _mean(entry, measure, seeds) for measure in ("accuracy", *atlas.shown)}
            for name, entry in plain["entries"].items()
        }
    with users_code(f"{rows} has not the rows that flsel place wrote", reads=True):
        lines = csv.DictReader(rows.read_text(encoding="utf-8").splitlines())
        found = measurements(list(lines), tuple(atlas.scenarios), atlas.parts, atlas.measures)
    accuracy = found.values["accuracy"]
    if set(found.selectors) != set(entries) or accuracy.shape[1] != seeds or np.isnan(accuracy).any():
        raise UserError(
            f"{rows} must have a row for each of {', '.join(entries)} in every scenario, with each of "
            f"{seeds} seeds."
        )
    kept, _ = distinct_scenarios(list(atlas.scenarios))
    base = atlas.measured.of("accuracy", BASE)[:, :seeds]
    for name, entry in entries.items():
        gain = entry["accuracy"]
        points = 100 * float((found.of("accuracy", name) - base)[kept].mean())
        if paired and not math.isclose(points, gain.value, abs_tol=1e-3):
            raise UserError(f"{path} says {gain.value:+.4f} points for {name}, and its rows {points:+.4f}.")
    return plain | {"file": path.name, "measured": found}


def with_contributions(atlas: ShippedAtlas, seeds: int, folder: Path | None = None) -> ShippedAtlas:
    """Return an atlas with the paired contributions of enough seeds among its selectors.

    Args:
        atlas: The atlas.
        seeds: Seeds that are compared.
        folder: As for :func:`contributions`.

    Raises:
        UserError: If a contributed file is damaged.
    """
    names, values = list(atlas.measured.selectors), {name: [v] for name, v in atlas.measured.values.items()}
    for plain in contributions(folder):
        if plain["atlas"] != atlas.name or not plain["paired"] or plain["seeds"] < seeds:
            continue
        found: Measurements = plain["measured"]
        names += [f"{name} ({CONTRIBUTED} in {plain['file']})" for name in found.selectors]
        for measure, parts in values.items():
            missing = ((0, 0), (0, atlas.most_seeds - plain["seeds"]), (0, 0))
            parts.append(np.pad(found.values[measure], missing, constant_values=np.nan))
    joined = {name: np.concatenate(parts, axis=2) for name, parts in values.items()}
    return replace(atlas, measured=Measurements(tuple(names), joined))


def _mean(entry: dict[str, Any], measure: str, seeds: int) -> Estimate:
    value, low, high = map(float, entry[key_of(measure)])
    return Estimate(value, low, high, seeds)


def atlas_table(atlas: ShippedAtlas, folder: Path | None = None) -> tuple[list[str], list[list[str]]]:
    """Return a line for each selector of an atlas, committed and contributed, the best first."""
    committed = place_runs(atlas, (), (), (Path(), ()))
    lines = [(committed.mean_gain(line[0]).value, [*line, "committed"]) for line in all_table(committed)[1]]
    for plain in contributions(folder):
        if plain["atlas"] != atlas.name:
            continue
        for name, entry in plain["entries"].items():
            means = {measure: _mean(entry, measure, plain["seeds"]) for measure in atlas.shown}
            decides = means[atlas.decides].value
            gain = decides if atlas.decides in ACCURACIES else -math.log(decides)
            told = f"{plain['file']}, {plain['seeds']} seeds"
            told += "" if plain["paired"] else ", not paired"
            told += f", tuned: {entry['tuned']}" if entry["tuned"] else ""
            lines.append((gain, [name, *cells(atlas, means, int(entry.get("missed", 0))), told]))
    lines.sort(key=lambda line: -line[0])
    return ["selector", *headings(atlas), "from"], [line for _, line in lines]
