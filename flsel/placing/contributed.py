"""All that is known of an atlas: the committed selectors, and placements that others contributed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flsel.errors import UserError, users_code
from flsel.files.shipped import brought_along
from flsel.placing.placement import SeedMean, place_runs
from flsel.placing.placement_report import FORMAT, all_table, points, ratio
from flsel.placing.shipped_atlas import BASE, ShippedAtlas


def contributions(folder: Path | None = None) -> list[dict[str, Any]]:
    """Read the JSON files of contributed placements, in the order of their names.

    Args:
        folder: Where they are; None is ``atlas/contributed``, which flsel brings along.

    Raises:
        UserError: If a file is damaged, or its rows are missing.
    """
    place = brought_along("atlas") / "contributed" if folder is None else folder
    found = []
    for path in sorted(place.glob("*.json")):
        with users_code(f"{path} is no placement that flsel place wrote", reads=True):
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain["format"] != FORMAT or not plain["entries"]:
                raise UserError(f"{path} is of another format; place the selector again.")
        if not path.with_suffix(".csv").is_file():
            raise UserError(f"{path} lacks its rows: put {path.with_suffix('.csv').name} beside it.")
        found.append(plain | {"file": path.name})
    return found


def atlas_table(atlas: ShippedAtlas, folder: Path | None = None) -> tuple[list[str], list[list[str]]]:
    """Return a line for each selector of an atlas, committed and contributed, the best first."""
    committed = place_runs(atlas, (), (), (Path(), ()))
    lines = [(committed.mean_gain(line[0]).value, [*line, "committed"]) for line in all_table(committed)[1]]
    for plain in contributions(folder):
        if plain["atlas"] != atlas.name:
            continue
        for name, entry in plain["entries"].items():
            gain, worst, rounds, sent = (
                SeedMean(*entry[key]) for key in ("points", "worst", "rounds", "bytes")
            )
            told = f"{plain['file']}, {plain['seeds']} seeds"
            told += "" if plain["paired"] else ", not paired"
            told += f", tuned: {entry['tuned']}" if entry["tuned"] else ""
            lines.append((gain.value, [name, points(gain), points(worst), ratio(rounds), ratio(sent), told]))
    lines.sort(key=lambda line: -line[0])
    target = f"{100 * atlas.target:g} %"
    head = ["selector", f"points to {BASE}", "worst tenth", f"rounds to {target}", "bytes", "from"]
    return head, [line for _, line in lines]
