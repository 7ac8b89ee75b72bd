"""A comparison's file: what is compared, how it is judged, and the commands that led there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import yaml

from flsel.arguments import Range, check
from flsel.comparison.config import CompareConfig
from flsel.comparison.grid import FILE, Grid, from_plain
from flsel.errors import located, users_code
from flsel.files import check_folder, write_atomic
from flsel.files.yaml import read_yaml


@dataclass(frozen=True)
class Judging:
    """How a comparison is judged, as its file keeps it.

    Attributes:
        baseline: The variant that others are compared with, or None.
        target: Test accuracy to reach, or None.
        target_after: Whether the target was given when runs had been seen.
        last: Evaluations in the mean at the end.

    Raises:
        UserError: If a value is out of range.
    """

    baseline: str | None = None
    target: Annotated[float | None, Range(above=0, high=1)] = None
    target_after: bool = False
    last: Annotated[int, Range(1)] = 10

    def __post_init__(self) -> None:
        check(type(self), vars(self), "judging.")

    def asked_again(self, wanted: CompareConfig) -> Judging:
        """Return it with what is wanted now; a target that differs is given when runs may have been seen."""
        judging = replace(self, baseline=wanted.baseline or self.baseline, last=wanted.last or self.last)
        if wanted.target is not None and wanted.target != self.target:
            judging = replace(judging, target=wanted.target, target_after=True)
        return judging


def read_declaration(folder: Path) -> tuple[Grid, Judging, list[str]]:
    """Read what a comparison's folder declares.

    Raises:
        UserError: If it is no comparison.
    """
    check_folder(folder, "comparison", FILE)
    with located(str(folder / FILE)):
        plain: Any = read_yaml(folder / FILE)
    # What no flsel wrote may have any types; nothing else is read in here.
    with users_code(f"{folder / FILE} is damaged: restore it, or start a new comparison", reads=True):
        grid = from_plain(plain, folder / FILE)
        with located(str(folder / FILE)):
            grid.run_config(next(grid.cells()), folder)
        with located(str(folder / FILE)):
            return grid, Judging(**plain.get("judging", {})), list(plain.get("commands", []))


def write_declaration(folder: Path, grid: Grid, judging: Judging, commands: Sequence[str]) -> None:
    """Write the comparison's file.

    Raises:
        UserError: If it cannot be written.
    """
    plain = {"commands": list(commands), "judging": asdict(judging), **grid.to_plain()}
    # By way of JSON: tuples become lists, and nothing is shared.
    write_atomic(folder / FILE, yaml.safe_dump(json.loads(json.dumps(plain)), sort_keys=False))
