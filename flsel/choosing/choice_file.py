"""A race's file: what races, what decides, who was left out and why, and the commands that led there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flsel.comparison.grid import Grid, from_plain
from flsel.comparison.judging.deciding import Deciding
from flsel.errors import UserError, located, users_code
from flsel.files import check_folder, write_atomic
from flsel.files.yaml import read_yaml

FILE = "race.yaml"


@dataclass(frozen=True)
class RaceRules:
    """What a race decides.

    Attributes:
        decides: ``accuracy``, which stands for the runs' score, or the axis of the cost.
        margin: Points of accuracy, an amount of another score, or the ratio of two costs, that do not matter.
        last: Evaluations in the mean at the end, or in the running mean to the target.
        target: Score to reach where a cost decides; else None.
        may: What the server may know, as it was given; None is everything.
        stop_at_target: What the config says of runs that reach the target; in a race they go on.
    """

    decides: str
    margin: float
    last: int
    target: float | None = None
    may: str | None = None
    stop_at_target: bool = False

    @property
    def deciding(self) -> Deciding:
        """What is compared, where runs are judged by test accuracy."""
        return Deciding(self.decides, self.last, self.target)


@dataclass(frozen=True)
class Declared:
    """A race as its file holds it.

    Attributes:
        grid: The runs, with all seeds up to the maximum.
        rules: What decides.
        needs: What each variant needs to know, in words.
        left_out: Why others do not race.
        commands: Command lines that led here.
    """

    grid: Grid
    rules: RaceRules
    needs: Mapping[str, str]
    left_out: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """What races, in the order of arrays."""
        return [variant.name for variant in self.grid.variants]


def write_declared(folder: Path, declared: Declared) -> None:
    """Write the race's file.

    Raises:
        UserError: If it cannot be written.
    """
    plain = {
        "commands": list(declared.commands),
        "rules": asdict(declared.rules),
        "needs": dict(declared.needs),
        "left_out": dict(declared.left_out),
        **declared.grid.to_plain(),
    }
    write_atomic(folder / FILE, yaml.safe_dump(json.loads(json.dumps(plain)), sort_keys=False))


def read_declared(folder: Path) -> Declared:
    """Read what a race's folder declares.

    Raises:
        UserError: If it is no race's, or damaged.
    """
    check_folder(folder, "race", FILE)
    with located(str(folder / FILE)):
        plain: Any = read_yaml(folder / FILE)
    with users_code(f"{folder / FILE} is damaged: restore it, or start a new race", reads=True):
        grid = from_plain(plain, folder / FILE)
        names = {variant.name for variant in grid.variants}
        if names != set(plain["needs"]):
            raise UserError("needs must name what races.")
        texts: Sequence[str] = [str(command) for command in plain["commands"]]
        left_out = {str(name): str(reason) for name, reason in plain["left_out"].items()}
        return Declared(grid, RaceRules(**plain["rules"]), plain["needs"], left_out, tuple(texts))
