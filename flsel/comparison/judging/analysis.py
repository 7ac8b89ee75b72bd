"""The numbers of a comparison: every variant summarised, and compared with the baseline in every scenario."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from flsel.comparison.grid import Tuning
from flsel.comparison.judging.claims import MEAN, Claim, Sample
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.designs import ACCURACY
from flsel.comparison.judging.estimates import Estimate, interquartile_mean, mean_interval
from flsel.comparison.judging.families import claims, fixed_claims
from flsel.comparison.judging.measures import (
    Measure,
    Target,
    arrival_name,
    arrivals,
    end_name,
    measure,
    measures,
    own_metrics,
    score_at_equal,
)
from flsel.comparison.judging.ranks import Ranking, rank
from flsel.comparison.judging.summaries import Difference, Summary, compare
from flsel.comparison.judging.time_to_target import TargetTime, TargetTimes, summarise
from flsel.comparison.run_table import Run, complete
from flsel.runner.cost_axes import COST_AXES

_Row = TypeVar("_Row")
Key = tuple[str, str, str]
"""Variant, scenario, and name of a measure."""


@dataclass(frozen=True)
class Analysis(Sample):
    """All numbers of a comparison, computed from its runs when they are asked for.

    Attributes:
        target: Score to reach, or None.
        tuned: By variant the sweep that tuned it.
    """

    target: Target | None
    tuned: Mapping[str, Tuning]

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants, in order."""
        return tuple(dict.fromkeys(run.variant for run in self.runs))

    @cached_property
    def scenarios(self) -> tuple[str, ...]:
        """Names of the scenarios, in order."""
        return tuple(dict.fromkeys(run.scenario for run in self.runs))

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """What was measured, by name."""
        return measures(self.options.last, own_metrics(complete(self.runs)), self.options.score)

    @cached_property
    def values(self) -> Mapping[str, Mapping[str, float]]:
        """By run folder the values of a complete run, by name; at equal costs by all runs of a scenario."""
        done, last = complete(self.runs), self.options.last
        found = {str(run.folder): measure(run, last) for run in done}
        for scenario in {run.scenario for run in done}:
            for folder, more in score_at_equal([r for r in done if r.scenario == scenario], last).items():
                found[folder] |= more
        return found

    @cached_property
    def summaries(self) -> Mapping[Key, Summary]:
        """By (variant, scenario, measure)."""
        return {
            (v, s, name): self._summary(known, values)
            for v, s in self._cells
            for name, known in self.measures.items()
            if (values := self._measured(self.of(v, s), name))
        }

    @cached_property
    def reached(self) -> Mapping[Key, TargetTimes]:
        """Likewise, costs to the target."""
        return {(v, s, name): found for v, s in self._cells for name, found in self._reached(v, s)}

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """What was decided.

        Raises:
            UserError: If a run does not have the cost that decides.
        """
        decided = claims(self) if self.options.until_decided else fixed_claims(self, self._claimed)
        return tuple(claim.marked(self.options.changes) for claim in decided)

    @cached_property
    def differences(self) -> Mapping[Key, Difference]:
        """By (variant, scenario, measure), to the baseline."""
        cells = (cell for cell in self._cells if cell in self.pairs)
        return {(v, s, name): found for v, s in cells for name, found in self._differences(v, s)}

    @cached_property
    def ranking(self) -> Ranking | None:
        """Ranks in the scenarios that have all variants, over their common seeds; None of one scenario.

        A run that diverged ranks last. Ranks only describe where their scenarios, variants, seeds or
        evaluations were chosen when results could be seen.
        """
        if len(self.scenarios) < 2 or len(self.variants) < 2:
            return None
        ended: dict[tuple[str, str], dict[int, float]] = {}
        for run in self.runs:
            if run.status == "diverged":
                ended.setdefault((run.variant, run.scenario), {})[run.seed] = math.copysign(
                    math.inf, -self.options.score.gains
                )
        for variant, scenario, summary in named(self.summaries, self.main):
            ended.setdefault((variant, scenario), {}).update(summary.values)
        rows = [[ended.get((v, s), {}) for v in self.variants] for s in self.scenarios]
        values = [row for row in rows if all(row)]
        seeds = sorted(set.intersection(*(set(v) for row in values for v in row))) if values else []
        if len(values) < 2 or not seeds:
            return None
        scores = np.array([[[v[seed] for v in row] for row in values] for seed in seeds])
        scores = scores * math.copysign(1.0, self.options.score.gains)  # larger is better
        chosen = {"last", "level", "seeds", "variants", "scenarios", "runs"}
        changed = any(change.what in chosen for change in self.options.changes)
        return rank(scores, self.options.level, described=self.options.until_decided or changed)

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

    def arrival(self, variant: str, scenario: str, name: str) -> TargetTimes | None:
        """Return a variant's way to the target, if there is one."""
        return self.reached.get((variant, scenario, name))

    @property
    def _cells(self) -> Iterator[tuple[str, str]]:
        return ((v, s) for s in self.scenarios for v in self.variants)

    @cached_property
    def _runs(self) -> dict[tuple[str, str], list[Run]]:
        cells: dict[tuple[str, str], list[Run]] = {}
        for run in sorted(complete(self.runs), key=lambda run: run.seed):
            cells.setdefault((run.variant, run.scenario), []).append(run)
        return cells

    @cached_property
    def _claims(self) -> dict[Key, Claim]:
        return {(c.variant, c.scenario, c.measure): c for c in self.claims if c.kind == "mean"}

    @property
    def _claimed(self) -> list[Deciding]:
        """What the claims of a fixed number of seeds are about: the score, and costs to a target.

        A target that was chosen after the runs allows no claim. It makes a family that was declared no
        smaller.
        """
        last, target, score = self.options.last, self.target, self.options.score
        found = [Deciding(ACCURACY, last, score=score)]
        if target is None or (target.chosen_after and not self.declares_target):
            return found
        before = (change.before for change in self.options.changes if change.what == "cost")
        costs = dict.fromkeys((self.options.cost, *before, "simulated_seconds"))
        there = {name for _, _, name in self.reached}
        return found + [
            Deciding(c, last, target.value, score) for c in costs if arrival_name(c, last) in there
        ]

    @property
    def _windows(self) -> Iterable[int]:
        """Evaluations in the running means that are to reach the target: of first hits, and as asked."""
        return dict.fromkeys((1, self.options.last)) if self.target is not None else ()

    def _measured(self, runs: Sequence[Run], name: str) -> dict[int, float]:
        """Return the finite values of a measure by seed."""
        found = ((run.seed, self.values[str(run.folder)].get(name, math.nan)) for run in runs)
        return {seed: value for seed, value in found if math.isfinite(value)}

    def _summary(self, known: Measure, values: Mapping[int, float]) -> Summary:
        """Summarise the values of a measure; no share lies beyond 1."""
        listed, most = list(values.values()), 1.0 if known.unit == "%" else math.inf
        mean = mean_interval(listed, self.options.level)
        if known.lowest <= min(listed):  # a loss that is a density's has no lowest value
            mean = replace(mean, low=max(mean.low, known.lowest), high=min(mean.high, most))
        return Summary(mean, interquartile_mean(listed), values)

    def _reached(self, variant: str, scenario: str) -> Iterator[tuple[str, TargetTimes]]:
        """Yield when runs arrive; one that diverged never does."""
        runs, key, target = self.of(variant, scenario), (variant, scenario, "diverged"), self.target
        if target is None or not runs:
            return
        lost = [run.seed for run in self.runs if (run.variant, run.scenario, run.status) == key]
        for window in self._windows:
            ways = {run.seed: arrivals(run, target, window) for run in runs}
            for cost in (cost for cost in COST_AXES if all(cost in way for way in ways.values())):
                end = TargetTime(max(float(run.columns[cost][-1]) for run in runs), reached=False)
                by_seed = {seed: way[cost] for seed, way in ways.items()} | dict.fromkeys(lost, end)
                yield arrival_name(cost, window), summarise(by_seed, self.options.level)

    def _differences(self, variant: str, scenario: str) -> Iterator[tuple[str, Difference]]:
        """Yield what the pairs show that the last look of their claim used; later ones count for no claim."""
        options, pairs = self.options, self.pairs[variant, scenario]
        own = (c for c in self.claims if c.variant == variant and c.scenario in (scenario, MEAN))
        claim = next(own, None) if options.until_decided else None
        chosen = [run.seed for run in pairs.ours] if claim is None else claim.used
        runs = [
            [run for run in side if claim is None or run.seed in chosen]
            for side in (pairs.ours, pairs.theirs)
        ]
        for known in self.measures.values():
            one, two = (
                {
                    seed: TargetTime(value, reached=True)
                    for seed, value in self._measured(side, known.name).items()
                }
                for side in runs
            )
            if pairs.paired:
                one, two = ({s: side[s] for s in one if s in two} for side in (one, two))
            most = 1.0 if known.unit == "%" else math.inf
            if found := compare(known.kind, (one, two), options, paired=pairs.paired, most=most):
                yield known.name, found
        for name in (arrival_name(c, w) for w in self._windows for c in COST_AXES):
            ways = [self.arrival(who, scenario, name) for who in (variant, options.baseline)]
            sides = [
                {run.seed: way.arrivals[run.seed] for run in side}
                for way, side in zip(ways, runs, strict=True)
                if way is not None
            ]
            both = len(sides) == 2
            if both and (found := compare("ratio", (sides[0], sides[1]), options, paired=pairs.paired)):
                yield name, found


def named(rows: Mapping[Key, _Row], name: str) -> list[tuple[str, str, _Row]]:
    """Return the rows of one measure, with variant and scenario."""
    return [(variant, scenario, row) for (variant, scenario, measure), row in rows.items() if measure == name]
