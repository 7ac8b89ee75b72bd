"""A comparison's file: what is compared, how it is judged, and the commands that led there."""

from __future__ import annotations

import json
import math
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
from flsel.comparison.judging.changes import Change
from flsel.comparison.judging.designs import ACCURACY, DEFAULT_MAX_SEEDS, UntilDecided
from flsel.errors import UserError, located, users_code
from flsel.files import check_folder, write_atomic
from flsel.files.yaml import read_yaml

_OF_DECIDING = ("until_decided", "decides", "max_seeds", "each_scenario")


@dataclass(frozen=True)
class Judging:
    """How a comparison is judged, as its file keeps it.

    Attributes:
        baseline: The variant that others are compared with, or None.
        target: Score to reach, or None.
        target_after: Whether the target was given when runs had been seen.
        cost: The cost to the target that verdicts are about.
        last: Evaluations in the mean at the end.
        until_decided: The rules of a comparison that adds seeds until its claims are decided, or None.
        seeds_added: Numbers of seeds at which the results of a fixed design were seen before more were added.
        level: Confidence level of intervals; one minus it is the chance of any false claim.
        margin: Half-width of practical equivalence of a fixed design, in the score's unit; None claims none.
        margin_ratio: Ratio of costs up to which they are equivalent in a fixed design; None claims none.
        changes: What was changed when results could be seen.
        judged_again: Commands that judged its runs by their folders, each with the seeds that could be seen.

    Raises:
        UserError: If a value is out of range.
    """

    baseline: str | None = None
    target: Annotated[float | None, Range()] = None
    target_after: bool = False
    cost: str = "rounds"
    last: Annotated[int, Range(1)] = 10
    until_decided: UntilDecided | None = None
    seeds_added: tuple[int, ...] = ()
    level: Annotated[float, Range(0.5, below=1)] = 0.95
    margin: Annotated[float | None, Range(above=0, high=100)] = None
    margin_ratio: Annotated[float | None, Range(above=1, high=10)] = None
    changes: tuple[Change, ...] = ()
    judged_again: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self, "judging.")
        check_cost(self.cost)

    @property
    def declares_target(self) -> bool:
        """Whether a target was declared before the first run, whatever was asked later."""
        moved = [change for change in self.changes if change.what == "target"]
        return moved[0].before is not None if moved else self.target is not None and not self.target_after

    @property
    def margins(self) -> dict[str, float]:
        """Half-widths of practical equivalence of a fixed design: of accuracy in points, of a cost as a "
        "log."""
        found = {} if self.margin is None else {ACCURACY: self.margin}
        return found if self.margin_ratio is None else {**found, "cost": math.log(self.margin_ratio)}

    def declared(self, wanted: CompareConfig) -> Judging:
        """Return it with what is declared before a run.

        Raises:
            UserError: If something does not fit together.
        """
        return replace(self.asked_again(wanted, 0), target=wanted.target or self.target, target_after=False)

    def asked_again(self, wanted: CompareConfig, seen: int, usual: str | None = None) -> Judging:
        """Return it with what is wanted now, and with what that changes.

        Args:
            wanted: What is wanted.
            seen: Number of seeds whose results could be seen; 0 makes no change.
            usual: The baseline where none is declared.

        Raises:
            UserError: If the rules of a comparison that adds seeds until decided cannot be changed so.
        """
        names = ("baseline", "target", "cost", "last", "level", "margin", "margin_ratio")
        asked = {name: value for name in names if (value := getattr(wanted, name)) is not None}
        if self.until_decided is not None:
            return self._decided_again(wanted, asked, seen)
        given = next((name for name in _OF_DECIDING if getattr(wanted, name)), None)
        if given:
            raise UserError(
                f"{given} must be declared before the first run, and this comparison has a fixed number "
                "of seeds; start a new one."
            )
        known = {name: getattr(self, name) for name in names} | {"baseline": self.baseline or usual}
        moved = {name: value for name, value in asked.items() if value != known[name]}
        made = replace(self, **moved)
        if "target" in moved:
            made = replace(made, target_after=True)
        return made.changed(*(Change(name, known[name], value, seen) for name, value in moved.items()))

    def changed(self, *changes: Change) -> Judging:
        """Return it with more changes, if results could be seen."""
        return replace(self, changes=(*self.changes, *(change for change in changes if change.seen)))

    def _decided_again(self, wanted: CompareConfig, asked: dict[str, Any], seen: int) -> Judging:
        """Return it with what may be changed where seeds are run until decided: margin, and the maximum "
        "once."""
        rules = self.until_decided or UntilDecided()
        declared: dict[str, Any] = {
            "decides": rules.decides, "baseline": self.baseline, "last": self.last, "level": rules.level,
        }  # fmt: skip
        if rules.of_cost:
            declared |= {"target": self.target, "cost": self.cost}
        for key, value in declared.items():
            now = getattr(wanted, key)
            if now not in (None, value):
                raise UserError(
                    f"{key} must stay as declared, {value}, where seeds are run until decided; got {now}."
                )
        if wanted.each_scenario and not rules.each_scenario:
            raise UserError("each_scenario must stay as declared, false, where seeds are run until decided.")
        made = replace(self, cost=asked.get("cost", self.cost))
        if asked.get("target") not in (None, self.target):
            made = replace(made, target=asked["target"], target_after=True)
        new = rules.with_margins(wanted.margin, wanted.margin_ratio, seen)
        made = replace(made, until_decided=new.raised(wanted.max_seeds or rules.max_seeds))
        widths = ((name, getattr(rules, name), getattr(new, name)) for name in ("margin", "margin_ratio"))
        return made.changed(*(Change(name, old, now, seen) for name, old, now in widths if old != now))


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
        level=wanted.level or 0.95,
    )


def declare(target: float | None, wanted: CompareConfig, variants: Sequence[str]) -> Judging:
    """Return how a new comparison is judged, with the rules by which it decides if it does.

    Raises:
        UserError: If something is missing or does not fit together.
    """
    if not wanted.until_decided:
        given = next((name for name in _OF_DECIDING if getattr(wanted, name)), None)
        if given:
            raise UserError(f"{given} must be given with until_decided: add --until-decided.")
        return Judging(target=target).declared(wanted)
    rules = rules_of(wanted)
    baseline = wanted.baseline or usual_baseline(variants)
    usual = Judging(baseline, target)
    made = replace(usual, cost=wanted.cost or usual.cost, last=wanted.last or usual.last, until_decided=rules)
    made = replace(made, level=rules.level)
    if not rules.of_cost:
        return made
    if target is None:
        raise UserError(
            f"decides {rules.decides} needs a target that is declared before the first run: give target, for "
            "example --target 0.8."
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
    made = None
    if rules is not None:
        earlier = tuple((n, width) for n, width in rules.get("earlier_margins", ()))
        made = UntilDecided(**{**rules, "earlier_margins": earlier})
    changes = tuple(Change(**change) for change in plain.get("changes", ()))
    texts = {name: tuple(plain.get(name, ())) for name in ("seeds_added", "judged_again")}
    return Judging(**{**plain, **texts, "until_decided": made, "changes": changes})


def write_declaration(folder: Path, grid: Grid, judging: Judging, commands: Sequence[str]) -> None:
    """Write the comparison's file.

    Raises:
        UserError: If it cannot be written.
    """
    plain = {"commands": list(commands), "judging": asdict(judging), **grid.to_plain()}
    # By way of JSON: tuples become lists, and nothing is shared.
    write_atomic(folder / FILE, yaml.safe_dump(json.loads(json.dumps(plain)), sort_keys=False))
