"""A comparison's file: what is compared, how it is judged, and the commands that led there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import yaml

from flsel.arguments import Range, check_settings, shown
from flsel.comparison.config import CompareConfig, check_cost
from flsel.comparison.grid import FILE, Cell, Grid, from_plain
from flsel.comparison.sequential.design import UntilDecided
from flsel.errors import UserError, located, users_code
from flsel.files import check_folder, write_atomic
from flsel.files.yaml import read_yaml


@dataclass(frozen=True)
class Judging:
    """How a comparison is judged, as its file keeps it.

    Attributes:
        baseline: The variant that others are compared with, or None.
        target: Test accuracy to reach, or None.
        target_after: Whether the target was given when runs had been seen.
        cost: The cost to the target that verdicts are about.
        last: Evaluations in the mean at the end.
        until_decided: The rules of a comparison that adds seeds until its claims are decided, or None.
        seeds_added: Numbers of seeds at which the results of a fixed design were seen before more were added.

    Raises:
        UserError: If a value is out of range.
    """

    baseline: str | None = None
    target: Annotated[float | None, Range(above=0, high=1)] = None
    target_after: bool = False
    cost: str = "rounds"
    last: Annotated[int, Range(1)] = 10
    until_decided: UntilDecided | None = None
    seeds_added: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self, "judging.")
        check_cost(self.cost)

    def asked_again(self, wanted: CompareConfig) -> Judging:
        """Return it with what is wanted now; a target that differs is given when runs may have been seen.

        Raises:
            UserError: If the rules of a comparison that adds seeds until decided cannot be changed so.
        """
        judging = replace(
            self,
            baseline=wanted.baseline or self.baseline,
            last=wanted.last or self.last,
            cost=wanted.cost or self.cost,
        )
        if wanted.target is not None and wanted.target != self.target:
            judging = replace(judging, target=wanted.target, target_after=True)
        rules = judging.until_decided
        if rules is None:
            names = ("until_decided", "margin", "max_seeds", "each_scenario")
            given = next((name for name in names if getattr(wanted, name)), None)
            if given:
                raise UserError(
                    f"{given} must be declared before the first run, and this comparison has a fixed number "
                    "of seeds; start a new one."
                )
            return judging
        if wanted.baseline not in (None, self.baseline) or wanted.last not in (None, self.last):
            raise UserError("baseline and last must stay as declared where seeds are run until decided.")
        rules = replace(rules, margin=wanted.margin or rules.margin)
        return replace(judging, until_decided=rules.raised(wanted.max_seeds or rules.max_seeds))


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
    rules = plain.get("until_decided")
    made = None if rules is None else UntilDecided(**rules)
    return Judging(**{**plain, "until_decided": made, "seeds_added": tuple(plain.get("seeds_added", ()))})


def write_declaration(folder: Path, grid: Grid, judging: Judging, commands: Sequence[str]) -> None:
    """Write the comparison's file.

    Raises:
        UserError: If it cannot be written.
    """
    plain = {"commands": list(commands), "judging": asdict(judging), **grid.to_plain()}
    # By way of JSON: tuples become lists, and nothing is shared.
    write_atomic(folder / FILE, yaml.safe_dump(json.loads(json.dumps(plain)), sort_keys=False))
