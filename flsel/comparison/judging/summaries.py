"""The numbers of a comparison: summaries, costs to the target, differences to the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from flsel.comparison.grid import Tuning
from flsel.comparison.judging.claims import Claim, Sequential
from flsel.comparison.judging.estimates import (
    FEWEST_SEEDS,
    LEVEL,
    Estimate,
    Paired,
)
from flsel.comparison.judging.late_runs import LateRuns
from flsel.comparison.judging.measures import Kind, Measure, Target
from flsel.comparison.judging.pairs import Pairs
from flsel.comparison.judging.ranks import Ranking
from flsel.comparison.judging.seeds_needed import SeedsNeeded, resolvable, seeds_needed
from flsel.comparison.judging.time_to_target import TargetTime, TargetTimes
from flsel.comparison.run_table import Run
from flsel.metrics import Better


@dataclass(frozen=True)
class Options:
    """How runs are judged.

    Attributes:
        baseline: The variant that others are compared with.
        last: Evaluations in the mean at the end, and in the running mean to the target.
        unpaired: Whether runs that are no pairs are compared unpaired instead of being left out.
        asked: How many evaluations ``last`` was to be; runs may be too short for them.
        sequential: How claims are decided where seeds are added until they are; None for a fixed design.
        seeds_added: Numbers of seeds at which the results of a fixed design were seen before more were added.
        cost: The cost to the target that verdicts are about.
    """

    baseline: str
    last: int = 10
    unpaired: bool = False
    asked: int = 10
    sequential: Sequential | None = None
    seeds_added: tuple[int, ...] = ()
    cost: str = "rounds"


@dataclass(frozen=True)
class Summary:
    """One measure of one variant in one scenario.

    Attributes:
        variant: What.
        scenario: Where.
        measure: Name of the measure.
        mean: Mean over the seeds with its interval.
        iqm: Interquartile mean.
        values: By seed.
    """

    variant: str
    scenario: str
    measure: str
    mean: Estimate
    iqm: float
    values: Mapping[int, float]


@dataclass(frozen=True)
class Reached:
    """What one variant spent to reach the target in one scenario.

    Attributes:
        variant: What.
        scenario: Where.
        cost: Name of the cost.
        window: Evaluations in the running mean; 1 is the first hit.
        found: Median and restricted mean.
        arrivals: By seed.
    """

    variant: str
    scenario: str
    cost: str
    window: int
    found: TargetTimes
    arrivals: Mapping[int, TargetTime]

    @property
    def measure(self) -> str:
        """Name of the measure: ``rounds/target`` of first hits, ``rounds/target10`` of running means."""
        return arrival_name(self.cost, self.window)


@dataclass(frozen=True)
class Difference:
    """A variant against the baseline in one measure and one scenario.

    Attributes:
        variant: What.
        scenario: Where.
        measure: Name of the measure.
        kind: Difference or ratio; of a ratio ``found.difference`` is of natural logarithms.
        found: Estimates and tests; unpaired ones have only a difference and a p-value.
        seeds: Seeds of the pairs; where runs are late, of those in which both arrive.
        paired: Whether runs are compared seed by seed.
        better: Which values are better, ``max`` or ``min``; None for neither.
        censored: How many runs of the two had not reached the target.
        late: What is known where some had not; None where all had.
        withheld: Claims that diverged runs forbid: ``better``, ``worse``, or both.
        p_holm: ``found.p``, corrected for all comparisons in the family of this measure.
        p_exact_holm: ``found.p_exact``, likewise.
        corrected: The difference with the interval that holds for the whole family (Bonferroni), or None.
        comparisons: How many comparisons the family has.
    """

    variant: str
    scenario: str
    measure: str
    kind: Kind
    found: Paired
    seeds: tuple[int, ...]
    paired: bool
    better: Better | None = None
    censored: int = 0
    late: LateRuns | None = None
    withheld: tuple[str, ...] = ()
    p_holm: float = math.nan
    p_exact_holm: float = math.nan
    corrected: Estimate | None = None
    comparisons: int = 1

    @property
    def shown(self) -> Estimate:
        """The difference, or the ratio, with its interval."""
        return self._scaled(self.found.difference)

    @property
    def claimed(self) -> Estimate:
        """What a claim is about: the difference, or the bound of a ratio's logarithm where runs are late."""
        bound = None if self.late is None else self.late.bound
        return self.found.difference if bound is None else bound

    @property
    def pairs(self) -> int:
        """Pairs that a claim rests on."""
        return self.found.difference.n if self.late is None else self.late.pairs

    @property
    def shown_corrected(self) -> Estimate | None:
        """The same with the interval that holds for all comparisons of its family together (Bonferroni)."""
        return None if self.corrected is None else self._scaled(self.corrected)

    def _scaled(self, found: Estimate) -> Estimate:
        return found.map(np.exp) if self.kind == "ratio" else found

    @property
    def seeds_needed(self) -> SeedsNeeded | None:
        """Seeds that give 80 % power, corrected for the family; None where runs are not paired."""
        return seeds_needed(np.array(self.found.values), self.comparisons) if self.paired else None

    @property
    def resolvable(self) -> float:
        """Smallest true difference that the corrected test finds with 80 % power; NaN where unknown."""
        return resolvable(np.array(self.found.values), self.comparisons) if self.paired else math.nan

    @property
    def resolved(self) -> bool:
        """Whether chance is excluded at 5 %, corrected, with enough seeds, and no diverged run forbids it."""
        return self.excluded and self.direction not in self.withheld

    @property
    def excluded(self) -> bool:
        """Whether chance is excluded at 5 %, corrected, and enough seeds are there to say so."""
        return self.p_holm <= 1 - LEVEL and self.pairs >= FEWEST_SEEDS

    @property
    def direction(self) -> str:
        """``better`` or ``worse`` by the estimate; empty where neither direction of the measure is better."""
        if self.better is None:
            return ""
        return "better" if (self.claimed.value > 0) == (self.better == "max") else "worse"

    @property
    def equal(self) -> bool:
        """Whether every pair has the same difference."""
        found = self.found.difference
        return found.n > 1 and found.low == found.high and self.late is None


@dataclass(frozen=True)
class Analysis:
    """All numbers of a comparison.

    Attributes:
        runs: Every run, complete or not.
        variants: Their names, in order.
        scenarios: Theirs.
        options: How they are judged.
        target: Test accuracy to reach, or None.
        measures: What was measured, by name.
        values: By run folder the values of a complete run, by name.
        summaries: Of every variant in every scenario.
        reached: Likewise, costs to the target.
        differences: To the baseline.
        pairs: By (scenario, variant), how runs were paired.
        ranking: Variants over scenarios, or None with one scenario.
        tuned: By variant the sweep that tuned it.
        claims: What was decided, where seeds are added until claims are decided.
    """

    runs: tuple[Run, ...]
    variants: tuple[str, ...]
    scenarios: tuple[str, ...]
    options: Options
    target: Target | None
    measures: Mapping[str, Measure]
    values: Mapping[str, Mapping[str, float]]
    summaries: tuple[Summary, ...]
    reached: tuple[Reached, ...]
    differences: tuple[Difference, ...]
    pairs: Mapping[tuple[str, str], Pairs]
    ranking: Ranking | None
    tuned: Mapping[str, Tuning]
    claims: tuple[Claim, ...] = ()

    @property
    def to_target(self) -> str:
        """Name of the measure of the cost to the target that verdicts are about."""
        return arrival_name(self.options.cost, self.options.last)

    @property
    def family(self) -> tuple[str, ...]:
        """Measures that claims are about: accuracy, and costs to a target set beforehand."""
        chosen_after = self.target is not None and self.target.chosen_after
        return (self.main,) if chosen_after else self.corrected_together

    @property
    def corrected_together(self) -> tuple[str, ...]:
        """Measures that are corrected together: accuracy, and costs to a target.

        Another target than the declared one makes the family no smaller, though it allows no claim.
        """
        declared = any(run.settings.get("evaluation", {}).get("target") is not None for run in self.runs)
        if self.target is None or (self.target.chosen_after and not declared):
            return (self.main,)
        time = arrival_name("simulated_seconds", self.options.last)
        claimed = dict.fromkeys((self.to_target, time))
        return (self.main, *(name for name in claimed if any(r.measure == name for r in self.reached)))

    @property
    def deciding(self) -> str:
        """Name of the measure that decides: the main one, or a cost to the target that was declared."""
        how = self.options.sequential
        return self.to_target if how is not None and how.rules.of_cost else self.main

    @property
    def main(self) -> str:
        """Name of the measure that ranks: the mean of the last evaluations of test accuracy."""
        return f"accuracy/last{self.options.last}"

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the measures of the runs' own metrics (``evaluation.metrics``) that verdicts are about."""
        ends = f"/last{self.options.last}"
        known = (self.main, f"loss{ends}")
        return tuple(name for name in self.measures if name.endswith(ends) and name not in known)

    def of(self, variant: str, scenario: str) -> Sequence[Run]:
        """Return a variant's complete runs in a scenario, seeds ascending."""
        return self._runs.get((variant, scenario), ())

    def diverged(self, variant: str, scenario: str) -> frozenset[int]:
        """Return the seeds under which a variant diverged in a scenario."""
        return frozenset(
            run.seed
            for run in self.runs
            if (run.variant, run.scenario, run.status) == (variant, scenario, "diverged")
        )

    def difference(self, variant: str, scenario: str, name: str) -> Difference | None:
        """Return the comparison of a variant in one measure, if there is one."""
        return self._differences.get((variant, scenario, name))

    def summary(self, variant: str, scenario: str, name: str) -> Summary | None:
        """Return a variant's summary in one measure, if there is one."""
        return self._summaries.get((variant, scenario, name))

    def arrival(self, variant: str, scenario: str, name: str) -> Reached | None:
        """Return a variant's way to the target, if there is one."""
        return self._reached.get((variant, scenario, name))

    @cached_property
    def _runs(self) -> dict[tuple[str, str], list[Run]]:
        found: dict[tuple[str, str], list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: run.seed):
            if run.status == "complete":
                found.setdefault((run.variant, run.scenario), []).append(run)
        return found

    @cached_property
    def _differences(self) -> dict[Key, Difference]:
        return _by_key(self.differences)

    @cached_property
    def _summaries(self) -> dict[Key, Summary]:
        return _by_key(self.summaries)

    @cached_property
    def _reached(self) -> dict[Key, Reached]:
        return _by_key(self.reached)


Key = tuple[str, str, str]
_Row = TypeVar("_Row", Summary, Reached, Difference)


def _by_key(rows: Sequence[_Row]) -> dict[Key, _Row]:
    return {(row.variant, row.scenario, row.measure): row for row in rows}


def arrival_name(cost: str, window: int) -> str:
    """Return the name of a cost to the target."""
    return f"{cost}/target" if window == 1 else f"{cost}/target{window}"
