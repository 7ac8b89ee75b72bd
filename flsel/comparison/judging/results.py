"""The numbers of a comparison: summaries, costs to the target, differences to the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flsel.comparison.grid import Tuning
from flsel.comparison.judging.arrival import Arrival, Arrivals
from flsel.comparison.judging.measures import Kind, Measure, Target
from flsel.comparison.judging.pairing import Pairs
from flsel.comparison.judging.ranking import Ranking
from flsel.comparison.judging.statistics import LEVEL, Estimate, Paired
from flsel.comparison.reading import Run


@dataclass(frozen=True)
class Options:
    """How runs are judged.

    Attributes:
        baseline: The variant that others are compared with.
        last: Evaluations in the mean at the end, and in the running mean to the target.
        unpaired: Whether runs that are no pairs are compared unpaired instead of being left out.
        asked: How many evaluations ``last`` was to be; runs may be too short for them.
    """

    baseline: str
    last: int = 10
    unpaired: bool = False
    asked: int = 10


@dataclass(frozen=True)
class Summary:
    """One measure of one variant in one setting.

    Attributes:
        variant: What.
        setting: Where.
        measure: Name of the measure.
        mean: Mean over the seeds with its interval.
        iqm: Interquartile mean.
        values: By seed.
    """

    variant: str
    setting: str
    measure: str
    mean: Estimate
    iqm: float
    values: Mapping[int, float]


@dataclass(frozen=True)
class Reached:
    """What one variant spent to reach the target in one setting.

    Attributes:
        variant: What.
        setting: Where.
        cost: Name of the cost.
        window: Evaluations in the running mean; 1 is the first hit.
        found: Median and restricted mean.
        arrivals: By seed.
    """

    variant: str
    setting: str
    cost: str
    window: int
    found: Arrivals
    arrivals: Mapping[int, Arrival]

    @property
    def measure(self) -> str:
        """Name of the measure: ``rounds/target`` of first hits, ``rounds/target10`` of running means."""
        return arrival_name(self.cost, self.window)


@dataclass(frozen=True)
class Difference:
    """A variant against the baseline in one measure and one setting.

    Attributes:
        variant: What.
        setting: Where.
        measure: Name of the measure.
        kind: Difference or ratio; of a ratio ``found.difference`` is of natural logarithms.
        found: Estimates and tests; unpaired ones have only a difference and a p-value.
        seeds: Seeds of the pairs.
        paired: Whether runs are compared seed by seed.
        censored: How many runs of the two had not reached the target and count as the horizon.
        p_holm: ``found.p``, corrected for all comparisons in this measure.
        p_exact_holm: ``found.p_exact``, likewise.
    """

    variant: str
    setting: str
    measure: str
    kind: Kind
    found: Paired
    seeds: tuple[int, ...]
    paired: bool
    censored: int = 0
    p_holm: float = math.nan
    p_exact_holm: float = math.nan

    @property
    def shown(self) -> Estimate:
        """The difference, or the ratio, with its interval."""
        if self.kind == "ratio":
            return self.found.difference.map(np.exp)
        return self.found.difference

    def counts(self, seed: int) -> bool:
        """Tell whether runs of a seed are compared."""
        return not self.paired or seed in self.seeds

    @property
    def resolved(self) -> bool:
        """Whether chance is excluded at 5 %, corrected for all comparisons in this measure."""
        return self.p_holm <= 1 - LEVEL

    @property
    def equal(self) -> bool:
        """Whether every pair has the same difference, so that nothing can be said about chance."""
        found = self.found.difference
        return found.n > 1 and found.low == found.high


@dataclass(frozen=True)
class Analysis:
    """All numbers of a comparison.

    Attributes:
        runs: Every run, complete or not.
        variants: Their names, in order.
        settings: Theirs.
        options: How they are judged.
        target: Test accuracy to reach, or None.
        measures: What was measured, by name.
        values: By run folder the values of a complete run, by name.
        summaries: Of every variant in every setting.
        reached: Likewise, costs to the target.
        differences: To the baseline.
        pairs: By (setting, variant), how runs were paired.
        ranking: Variants over settings, or None with one setting.
        tuned: By variant the sweep that tuned it.
    """

    runs: tuple[Run, ...]
    variants: tuple[str, ...]
    settings: tuple[str, ...]
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

    @property
    def main(self) -> str:
        """Name of the measure that ranks: the mean of the last evaluations of test accuracy."""
        return f"accuracy/last{self.options.last}"

    def of(self, variant: str, setting: str) -> list[Run]:
        """Return a variant's complete runs in a setting, seeds ascending."""
        chosen = [r for r in self.runs if (r.variant, r.setting, r.status) == (variant, setting, "complete")]
        return sorted(chosen, key=lambda run: run.seed)

    def difference(self, variant: str, setting: str, name: str) -> Difference | None:
        """Return the comparison of a variant in one measure, if there is one."""
        wanted = (variant, setting, name)
        return next((d for d in self.differences if (d.variant, d.setting, d.measure) == wanted), None)

    def summary(self, variant: str, setting: str, name: str) -> Summary | None:
        """Return a variant's summary in one measure, if there is one."""
        wanted = (variant, setting, name)
        return next((s for s in self.summaries if (s.variant, s.setting, s.measure) == wanted), None)

    def arrival(self, variant: str, setting: str, name: str) -> Reached | None:
        """Return a variant's way to the target, if there is one."""
        wanted = (variant, setting, name)
        return next((r for r in self.reached if (r.variant, r.setting, r.measure) == wanted), None)


def arrival_name(cost: str, window: int) -> str:
    """Return the name of a cost to the target."""
    return f"{cost}/target" if window == 1 else f"{cost}/target{window}"
