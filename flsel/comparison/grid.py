"""What a comparison declares: variants, scenarios and seeds over one config; every combination is a cell."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flsel.arguments import shown
from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.files import refuse_link

Plain = dict[str, Any]
Changes = Mapping[str, Any]
ALL = "all"
"""Name of the scenario of a comparison that varies none."""
FILE = "comparison.yaml"
_KEYS = ("config", "variants", "scenarios", "seeds")


@dataclass(frozen=True)
class Tuning:
    """Where a variant's settings were searched.

    Attributes:
        sweep: Folder of the sweep.
        seeds: Seeds under which its trials ran.
        trials: Settings that were tried.
        rounds: Communication rounds of a trial.
    """

    sweep: str
    seeds: tuple[int, ...]
    trials: int
    rounds: int


@dataclass(frozen=True)
class Variant:
    """One side of a comparison: a name, and its changes to the config, by dotted key."""

    name: str
    changes: Changes
    tuned: Tuning | None = None


@dataclass(frozen=True)
class Scenario:
    """One scenario of a comparison: a name, and its changes to the config, by dotted key."""

    name: str = ALL
    changes: Changes = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    variant: str
    scenario: str
    seed: int

    @property
    def folder(self) -> Path:
        """Folder of the run below the comparison's."""
        return Path("runs") / _slug(self.scenario) / _slug(self.variant) / f"s{self.seed}"

    def place(self, comparison: Path) -> Path:
        """Return the folder of the run in a comparison's folder.

        Raises:
            UserError: If it, or a folder above it within the comparison, is a link.
        """
        place = comparison / self.folder
        for depth in range(len(self.folder.parts)):
            refuse_link(place.parents[depth - 1] if depth else place)
        return place

    def __str__(self) -> str:
        where = "" if self.scenario == ALL else f" ({self.scenario})"
        return f"{self.variant}{where} seed {self.seed}"


@dataclass(frozen=True)
class Grid:
    """Variants x scenarios x seeds over one config.

    Attributes:
        config: The config as plain values.
        variants: What is compared, at least two, or one with several scenarios.
        scenarios: Where.
        seeds: Under which seeds.
    """

    config: Plain
    variants: tuple[Variant, ...]
    scenarios: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    _made: dict[tuple[str, str, Path], RunConfig] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    def cells(self) -> Iterator[Cell]:
        """Yield every cell; seed by seed, so that what is there early can be compared."""
        for seed in self.seeds:
            for scenario in self.scenarios:
                for variant in self.variants:
                    yield Cell(variant.name, scenario.name, seed)

    def run_config(self, cell: Cell, folder: Path) -> RunConfig:
        """Return the settings of a cell's run.

        Raises:
            UserError: If its changes do not fit.
        """
        place, kind = cell.place(folder), (cell.variant, cell.scenario, folder)
        if kind not in self._made:  # settings take a twentieth of a second to be read
            variant = next(v for v in self.variants if v.name == cell.variant)
            scenario = next(s for s in self.scenarios if s.name == cell.scenario)
            changes = {
                **scenario.changes,
                **variant.changes,
                "seed": cell.seed,
                "track.group": self.config["track"]["group"] or folder.name,
                "track.variant": cell.variant,
                "quiet": True,
            }
            self._made[kind] = RunConfig.from_dict(self.config, changes)
        made = deepcopy(self._made[kind])  # a user's own partition, say, may keep something in itself
        output = replace(made.output, dir=str(place.parent), name=place.name)
        return replace(made, seed=cell.seed, output=output)

    def merged(
        self, variants: Sequence[Variant], scenarios: Sequence[Scenario], seeds: Sequence[int]
    ) -> Grid:
        """Return the grid with more variants, scenarios and seeds; what is there already stays.

        Raises:
            UserError: If a name stands for something else already.
        """
        return replace(
            self,
            variants=_joined(self.variants, variants),
            scenarios=_joined(self.scenarios, scenarios),
            seeds=tuple(dict.fromkeys((*self.seeds, *seeds))),
        )

    def to_plain(self) -> Plain:
        """Describe the grid by plain values, for the comparison's file."""
        return {
            "variants": {
                v.name: {"changes": dict(v.changes)} | ({} if v.tuned is None else {"tuned": asdict(v.tuned)})
                for v in self.variants
            },
            "scenarios": {s.name: dict(s.changes) for s in self.scenarios},
            "seeds": list(self.seeds),
            "config": self.config,
        }


def from_plain(plain: Mapping[str, Any], where: Path) -> Grid:
    """Read what :meth:`Grid.to_plain` described.

    Raises:
        UserError: If it is something else.
    """
    if "settings" in plain and "scenarios" not in plain:
        raise UserError(f"{where}: the key settings is called scenarios; rename it in that file.")
    if any(key not in plain for key in _KEYS):
        raise UserError(f"{where} must hold {', '.join(_KEYS)}: restore it, or start a new comparison.")
    variants = []
    for name, entry in plain["variants"].items():
        tuned = entry.get("tuned")
        made = None if tuned is None else Tuning(**{**tuned, "seeds": tuple(tuned["seeds"])})
        variants.append(Variant(name, entry["changes"], made))
    scenarios = tuple(Scenario(name, changes) for name, changes in plain["scenarios"].items())
    for what, named in (("variants", variants), ("scenarios", scenarios)):
        for odd in (item.name for item in named if not isinstance(item.name, str)):
            raise UserError(f"{where}: names of {what} must be texts, got {shown(odd)}.")
    seeds = tuple(plain["seeds"])
    if not (variants and scenarios and seeds) or len(set(seeds)) < len(seeds):
        raise UserError(f"{where} must hold a variant, a scenario, and seeds that differ: restore it.")
    for seed in (seed for seed in seeds if type(seed) is not int):
        raise UserError(f"{where}: seed must be a whole number >= 0, got {shown(seed)}.")
    return Grid(plain["config"], tuple(variants), scenarios, seeds)


def _joined(before: Sequence[Any], more: Sequence[Any]) -> tuple[Any, ...]:
    known = {item.name: item for item in before}
    for item in more:
        if item.name in known and dict(known[item.name].changes) != dict(item.changes):
            raise UserError(
                f"{item.name} stands for other settings in this comparison already; give the new one another "
                "name (--variants)."
            )
        known.setdefault(item.name, item)
    return tuple(known.values())


def _slug(name: str) -> str:
    """Make a folder name: readable, and another one for another name."""
    plain = re.sub(r"[^\w.=+-]+", "_", name).strip("._")
    hashed = re.search(r"-[0-9a-f]{6}$", plain)
    if plain == name and len(plain) <= 100 and not hashed:
        return plain
    return f"{plain[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
