"""Where a selector stands on an atlas: rank, differences by family of scenarios, and ratios of costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flsel.comparison.judging.estimates import Estimate, student_interval
from flsel.comparison.run_table import Run
from flsel.placing.shipped_atlas import ACCURACIES, BASE, REACHED, SKEWED, Measurements, ShippedAtlas

FAMILIES: Mapping[str, Callable[[str, str], bool]] = {
    "all scenarios": lambda partition, mode: True,
    "skewed labels": lambda partition, mode: partition in SKEWED,
    "mild partitions": lambda partition, mode: partition not in SKEWED,
    "all clients available": lambda partition, mode: mode == "IDL",
    "clients unavailable": lambda partition, mode: mode != "IDL",
    "small labels unavailable": lambda partition, mode: mode == "YMF",
}
"""Families of scenarios, by partition and mode of availability."""
BY_SIZE = ("LDF", "MDF")
"""Modes by client size. If all clients have the same size, all are available under these modes."""
EVERYBODY, UNEQUAL = "IDL", ("HiCS mix", "natural", "log-normal")


@dataclass(frozen=True)
class Placement:
    """A placement.

    Attributes:
        atlas: The atlas.
        scenarios: The parts of the scenarios that count, partition and mode last; a scenario that is another
            one is left out.
        placed: Names of what was placed.
        measured: All results with the placed seeds, the committed ones first.
        repeated: Whether the three runs of the baseline had the committed results; else the baseline was run
            here, and committed selectors keep their differences to the committed baseline.
        runs: The runs of what was placed.
        folder: Their folder.
        commands: Command lines that led here.
        tuned: How what was tuned was searched, in words, by name.
    """

    atlas: ShippedAtlas = field(repr=False)
    scenarios: tuple[tuple[str, ...], ...] = field(repr=False)
    placed: tuple[str, ...]
    measured: Measurements = field(repr=False)
    repeated: bool
    runs: Sequence[Run] = field(repr=False)
    folder: Path
    commands: Sequence[str] = field(repr=False)
    tuned: Mapping[str, str] = field(default_factory=dict)

    @property
    def seeds(self) -> int:
        """Seeds of every scenario."""
        return int(self.measured.values["accuracy"].shape[1])

    def gains(self, selector: str, measure: str | None = None) -> np.ndarray:
        """Return what is better than the baseline's, ``[scenarios, seeds]``.

        Args:
            selector: Its name.
            measure: What is measured; None is what decides.

        Returns:
            Points of accuracy, or minus the logarithm of a ratio of costs.
        """
        measure = measure or self.atlas.decides
        found: np.ndarray = (100 if measure in ACCURACIES else -1) * self.measured.of(measure, selector)
        return found

    def family(self, name: str) -> np.ndarray:
        """Return which scenarios are of a family, bool ``[scenarios]``."""
        return np.array([FAMILIES[name](*scenario[-2:]) for scenario in self.scenarios])

    def mean_gain(self, selector: str, family: str = "all scenarios", measure: str | None = None) -> Estimate:
        """Return the mean of :meth:`gains` in a family."""
        return student_interval(self.gains(selector, measure)[self.family(family)].mean(axis=0))

    def best(self, family: str) -> str:
        """Return the committed or contributed selector with the largest mean in a family.

        Where a cost decides, one that misses the target in the baseline's place is none.
        """
        others = [name for name in self.measured.selectors if name not in self.placed]
        others = [name for name in others if not self.missed(name)]
        return max(others, key=lambda name: self.mean_gain(name, family).value)

    def to_best(self, selector: str, family: str) -> Estimate:
        """Return the mean difference to the best of a family (:meth:`best`)."""
        chosen = self.family(family)
        apart = self.gains(selector)[chosen] - self.gains(self.best(family))[chosen]
        return student_interval(apart.mean(axis=0))

    def ratio(self, selector: str, cost: str) -> Estimate:
        """Return the geometric mean ratio of a cost to the baseline's; a bound where runs are late."""
        return student_interval(self.measured.of(cost, selector).mean(axis=0)).map(np.exp)

    def missed(self, selector: str) -> int:
        """Return how many runs miss the target that the baseline's reaches; 0 where no cost decides."""
        if self.atlas.decides in ACCURACIES:
            return 0
        return int((self.measured.of(REACHED, selector) < 0).sum())

    def rank(self, selector: str, family: str = "all scenarios") -> int:
        """Return the place by mean difference among all, from 1."""
        own = self.mean_gain(selector, family).value
        return 1 + sum(self.mean_gain(other, family).value > own for other in self.measured.selectors)

    def above(self, selector: str) -> int:
        """Return in how many scenarios the mean is above the baseline's."""
        return int((self.gains(selector).mean(axis=1) > 0).sum())

    def first(self, selector: str) -> list[str]:
        """Return the scenarios in which nothing has a larger mean."""
        means = np.stack([self.gains(name).mean(axis=1) for name in self.measured.selectors])
        best = means.max(axis=0) == means[self.measured.selectors.index(selector)]
        return [", ".join(s) for s, is_best in zip(self.scenarios, best, strict=True) if is_best]


def place_runs(
    atlas: ShippedAtlas, runs: Sequence[Run], base: Sequence[Run], where: tuple[Path, Sequence[str]]
) -> Placement:
    """Pair runs with the committed results, seed by seed.

    Args:
        atlas: The atlas.
        runs: Complete runs of what is placed, in every scenario; none shows the committed results alone.
        base: The baseline's runs where it was run here; empty where the committed ones are its.
        where: The folder, and the command lines.
    """
    names, all_scenarios = tuple(dict.fromkeys(run.variant for run in runs)), list(atlas.scenarios)
    seeds = max((run.seed for run in runs), default=atlas.most_seeds)
    kept, scenarios = distinct_scenarios(all_scenarios)
    committed = {name: values[kept][:, :seeds] for name, values in atlas.measured.values.items()}
    ours = _array(atlas, runs, names, seeds)[:, kept]
    here = _array(atlas, base, (BASE,), seeds)[:, kept] if base else None
    at = atlas.measured.selectors.index(BASE)
    relative = {}
    for k, measure in enumerate(atlas.measures):
        theirs, baseline = committed[measure], committed[measure][..., at, None]
        own, own_base = ours[k], baseline if here is None else here[k]
        if measure in ACCURACIES or measure == REACHED:
            relative[measure] = np.concatenate([theirs - baseline, own - own_base], axis=2)
        else:
            relative[measure] = np.concatenate([np.log(theirs / baseline), np.log(own / own_base)], axis=2)
    every = Measurements((*atlas.measured.selectors, *names), relative)
    repeated = here is None and all(atlas.is_paired(run) for run in runs)
    return Placement(atlas, scenarios, names, every, repeated, tuple(runs), *where)


def _array(atlas: ShippedAtlas, runs: Sequence[Run], names: tuple[str, ...], seeds: int) -> np.ndarray:
    """Return the measures of runs, ``[measures, scenarios, seeds, names]``."""
    scenarios = list(atlas.scenarios)
    found = np.full((len(atlas.measures), len(scenarios), seeds, len(names)), np.nan)
    for run in runs:
        place = scenarios.index(run.scenario), run.seed - 1, names.index(run.variant)
        for k, value in enumerate(atlas.measure(run).values()):
            found[(k, *place)] = value
    return found


def distinct_scenarios(names: Sequence[str]) -> tuple[list[int], tuple[tuple[str, ...], ...]]:
    """Return the scenarios that are no other one, and the parts of each.

    Under a mode by client size all clients are available if all have the same size.
    """
    found: dict[tuple[str, ...], int] = {}
    for at, name in enumerate(names):
        *before, partition, mode = name.split(", ")
        everybody = mode in BY_SIZE and partition not in UNEQUAL
        found.setdefault((*before, partition, EVERYBODY if everybody else mode), at)
    return list(found.values()), tuple(found)
