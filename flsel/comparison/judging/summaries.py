"""The numbers of a comparison: summaries, costs to the target, differences to the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flsel.comparison.grid import Tuning
from flsel.comparison.judging.claims import MEAN, Claim
from flsel.comparison.judging.estimates import Estimate, Paired
from flsel.comparison.judging.late_runs import LateRuns
from flsel.comparison.judging.measures import Kind, Measure, Target, arrival_name, end_name
from flsel.comparison.judging.pairs import Pairs
from flsel.comparison.judging.ranks import Ranking
from flsel.comparison.judging.settings import Options
from flsel.comparison.judging.time_to_target import TargetTime, TargetTimes
from flsel.comparison.run_table import Run, complete

Key = tuple[str, str, str]
"""Variant, scenario, and name of a measure."""


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
    """A variant against the baseline in a measure and a scenario, described by itself.

    Attributes:
        variant: What.
        scenario: Where.
        measure: Name of the measure.
        kind: Difference or ratio; of a ratio ``found.difference`` is of natural logarithms.
        found: Estimates and tests; unpaired ones have only a difference and a p-value. Where runs are late,
            over the pairs in which both arrive.
        seeds: Seeds of these pairs.
        paired: Whether runs are compared seed by seed.
        late: What is known where some runs had not reached the target; None where all had.
        censored: How many runs of the two had not.
    """

    variant: str
    scenario: str
    measure: str
    kind: Kind
    found: Paired
    seeds: tuple[int, ...]
    paired: bool
    late: LateRuns | None = None
    censored: int = 0

    @property
    def shown(self) -> Estimate:
        """The difference, or the ratio, with its own interval."""
        return self.found.difference.map(np.exp) if self.kind == "ratio" else self.found.difference


@dataclass(frozen=True)
class Analysis:
    """All numbers of a comparison.

    Attributes:
        runs: Every run, complete or not.
        variants: Their names, in order.
        scenarios: Theirs.
        options: How they are judged.
        target: Score to reach, or None.
        measures: What was measured, by name.
        values: By run folder the values of a complete run, by name.
        summaries: By (variant, scenario, measure).
        reached: Likewise, costs to the target.
        differences: Likewise, to the baseline.
        pairs: By (variant, scenario), how runs were paired.
        ranking: Variants over scenarios, or None with one scenario.
        tuned: By variant the sweep that tuned it.
        claims: What was decided.
    """

    runs: tuple[Run, ...]
    variants: tuple[str, ...]
    scenarios: tuple[str, ...]
    options: Options
    target: Target | None
    measures: Mapping[str, Measure]
    values: Mapping[str, Mapping[str, float]]
    summaries: Mapping[Key, Summary]
    reached: Mapping[Key, Reached]
    differences: Mapping[Key, Difference]
    pairs: Mapping[tuple[str, str], Pairs]
    ranking: Ranking | None
    tuned: Mapping[str, Tuning]
    claims: tuple[Claim, ...] = ()

    @property
    def to_target(self) -> str:
        """Name of the measure of the cost to the target that verdicts are about."""
        return arrival_name(self.options.cost, self.options.last)

    @property
    def declares_target(self) -> bool:
        """Whether a target was declared before the runs, whatever was asked later."""
        return self.options.declares_target or any(
            run.settings.get("evaluation", {}).get("target") is not None for run in self.runs
        )

    @property
    def deciding(self) -> str:
        """Name of the measure that decides: the main one, or a cost to the target that was declared."""
        return self.options.decides_about.measure

    @property
    def main(self) -> str:
        """Name of the measure that ranks: the mean of the last evaluations of the runs' score."""
        return end_name(self.options.score, self.options.last)

    @cached_property
    def curves(self) -> dict[str, str]:
        """Columns that curves show, by name: the score, then accuracy and loss where all runs have them."""
        names, runs = dict.fromkeys((self.options.score.name, "accuracy", "loss")), complete(self.runs)
        return {name: f"test/{name}" for name in names if all(f"test/{name}" in r.columns for r in runs)}

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the measures described beside the score: the runs' metrics, and accuracy."""
        ends, there = f"/last{self.options.last}", {name for _, _, name in self.summaries}
        known = (self.main, f"loss{ends}")
        return tuple(n for n in self.measures if n.endswith(ends) and n not in known and n in there)

    def of(self, variant: str, scenario: str) -> Sequence[Run]:
        """Return a variant's complete runs in a scenario, seeds ascending."""
        return self._runs.get((variant, scenario), ())

    def claim(self, variant: str, scenario: str, name: str) -> Claim | None:
        """Return the claim about a variant in one measure, if there is one; of a mean in every scenario."""
        return next(
            (found for place in (scenario, MEAN) if (found := self._claims.get((variant, place, name)))), None
        )

    def against(self, variant: str, scenario: str, name: str) -> Estimate | None:
        """Return a difference or ratio with the interval that decides its claim, or else with its own."""
        claim = self._claims.get((variant, scenario, name))
        if claim is not None and claim.shown is not None and not math.isnan(claim.shown.value):
            return claim.shown
        found = self.difference(variant, scenario, name)
        return None if found is None else found.shown

    def difference(self, variant: str, scenario: str, name: str) -> Difference | None:
        """Return the comparison of a variant in one measure, if there is one."""
        return self.differences.get((variant, scenario, name))

    def summary(self, variant: str, scenario: str, name: str) -> Summary | None:
        """Return a variant's summary in one measure, if there is one."""
        return self.summaries.get((variant, scenario, name))

    def arrival(self, variant: str, scenario: str, name: str) -> Reached | None:
        """Return a variant's way to the target, if there is one."""
        return self.reached.get((variant, scenario, name))

    @cached_property
    def _runs(self) -> dict[tuple[str, str], list[Run]]:
        cells: dict[tuple[str, str], list[Run]] = {}
        for run in sorted(complete(self.runs), key=lambda run: run.seed):
            cells.setdefault((run.variant, run.scenario), []).append(run)
        return cells

    @cached_property
    def _claims(self) -> dict[Key, Claim]:
        return {(c.variant, c.scenario, c.measure): c for c in self.claims if c.kind == "mean"}
