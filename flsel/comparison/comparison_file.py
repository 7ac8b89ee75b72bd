"""A comparison's file: what is compared, how it is judged, and the commands that led there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from flsel.arguments import shown
from flsel.comparison.grid import FILE, Cell, Grid, from_plain
from flsel.comparison.judging.settings import Change, Judging
from flsel.errors import UserError, located, users_code
from flsel.files import check_folder, write_atomic
from flsel.files.yaml import read_yaml

_WITHIN_CHANGES = ("earlier_margins", "seeds_added")  # earlier files have them beside the changes


def read_declaration(folder: Path) -> tuple[Grid, Judging, list[str]]:
    """Read what a comparison's folder declares.

    Raises:
        UserError: If it is no comparison.
    """
    check_folder(folder, "comparison", FILE)
    with located(str(folder / FILE)):
        plain: Any = read_yaml(folder / FILE)
    # What no flsel wrote may have any types; nothing else is read in here.
    damaged = f"{folder / FILE} is damaged: restore it, or start a new comparison"
    with users_code(damaged, reads=True):
        grid = from_plain(plain, folder / FILE)
    with users_code(damaged, reads=True), located(str(folder / FILE)):
        # Each variant and each scenario once; all pairs of many would take long to parse.
        first = grid.variants[0], grid.scenarios[0]
        for variant, place in (*product(grid.variants, first[1:]), *product(first[:1], grid.scenarios[1:])):
            grid.run_config(Cell(variant.name, place.name, grid.seeds[0]), folder)
        commands = plain.get("commands", [])
        if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
            raise UserError(f"commands must be a list of texts, got {shown(commands)}.")
        return grid, _judging(plain.get("judging", {})), commands


def _judging(plain: dict[str, Any]) -> Judging:
    if isinstance(rules := plain.get("until_decided"), dict):  # earlier files have them apart
        plain = plain | rules | {"until_decided": True}
    changes = tuple(Change(**change) for change in plain.get("changes", ()))
    plain = plain | {"changes": changes, "judged_again": tuple(plain.get("judged_again", ()))}
    known = {name: value for name, value in plain.items() if name not in _WITHIN_CHANGES}
    return Judging(**known | {"until_decided": bool(known.get("until_decided"))})


def write_declaration(folder: Path, grid: Grid, judging: Judging, commands: Sequence[str]) -> None:
    """Write the comparison's file.

    Raises:
        UserError: If it cannot be written.
    """
    plain = {"commands": list(commands), "judging": asdict(judging), **grid.to_plain()}
    # By way of JSON: tuples become lists, and nothing is shared.
    write_atomic(folder / FILE, yaml.safe_dump(json.loads(json.dumps(plain)), sort_keys=False))
