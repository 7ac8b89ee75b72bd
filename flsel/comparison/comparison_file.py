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
from flsel.comparison.compare_config import CompareConfig, check_cost
from flsel.comparison.comparison import usual_baseline
from flsel.comparison.grid import FILE, Cell, Grid, from_plain
from flsel.comparison.judging.designs import ACCURACY, DEFAULT_MAX_SEEDS, UntilDecided
from flsel.errors import UserError, located, users_code
from flsel.files import check_folder, write_atomic
from flsel.files.yaml import read_yaml

_OF_DECIDING = ("until_decided", "decides", "margin", "margin_ratio", "max_seeds", "each_scenario")


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
            given = next((name for name in _OF_DECIDING if getattr(wanted, name)), None)
            if given:
                raise UserError(
                    f"{given} must be declared before the first run, and this comparison has a fixed number "
                    "of seeds; start a new one."
                )
            return judging
        declared: dict[str, Any] = {"decides": rules.decides, "baseline": self.baseline, "last": self.last}
        if rules.of_cost:
            declared |= {"target": self.target, "cost": self.cost}
        for key, value in declared.items():
            asked = getattr(wanted, key)
            if asked not in (None, value):
                raise UserError(
                    f"{key} must stay as declared, {value}, where seeds are run until decided; got {asked}."
                )
        if wanted.each_scenario and not rules.each_scenario:
            raise UserError("each_scenario must stay as declared, false, where seeds are run until decided.")
        rules = replace(
            rules,
            margin=wanted.margin or rules.margin,
            margin_ratio=wanted.margin_ratio or rules.margin_ratio,
        )
        return replace(judging, until_decided=rules.raised(wanted.max_seeds or rules.max_seeds))


def rules_of(wanted: CompareConfig) -> UntilDecided:
    """Return the rules of a new comparison that adds seeds until its claims are decided.

    Raises:
        UserError: If they do not fit together.
    """
    return UntilDecided(
        wanted.margin,
        wanted.max_seeds or DEFAULT_MAX_SEEDS,
        each_scenario=wanted.each_scenario,
        decides=wanted.decides or ACCURACY,
        margin_ratio=wanted.margin_ratio,
    )


def declare(target: float | None, wanted: CompareConfig, variants: Sequence[str]) -> Judging:
    """Return how a new comparison is judged, with the rules by which it decides if it does.

    Args:
        target: Test accuracy to reach, or None.
        wanted: What is wanted.
        variants: Names of the variants.

    Raises:
        UserError: If something is missing or does not fit together.
    """
    if not wanted.until_decided:
        given = next((name for name in _OF_DECIDING if getattr(wanted, name)), None)
        if given:
            raise UserError(f"{given} must be given with until_decided: add --until-decided.")
        return Judging(target=target).asked_again(wanted)
    rules = rules_of(wanted)
    baseline = wanted.baseline or usual_baseline(variants)
    usual = Judging(baseline, target)
    made = replace(usual, cost=wanted.cost or usual.cost, last=wanted.last or usual.last, until_decided=rules)
    if not rules.of_cost:
        return made
    if target is None:
        raise UserError(
            f"decides {rules.decides} needs a target accuracy that is declared before the first run: give "
            "target, for example --target 0.8."
        )
    if wanted.cost not in (None, rules.decides):
        raise UserError(f"cost must be {rules.decides}, which decides, or be left out; got {wanted.cost}.")
    return replace(made, cost=rules.decides)


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
