"""From runs to numbers: every variant summarised, and compared with the baseline in every scenario."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from flsel.comparison.grid import Tuning
from flsel.comparison.judging.claims import MEAN, Claim
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.designs import ACCURACY
from flsel.comparison.judging.estimates import (
    Paired,
    compare_pairs,
    interquartile_mean,
    mean_interval,
    possible,
    welch_interval,
)
from flsel.comparison.judging.families import claims, fixed_claims
from flsel.comparison.judging.late_runs import bounds, compare_late
from flsel.comparison.judging.measures import (
    Kind,
    Target,
    arrival_name,
    arrivals,
    measure,
    measures,
    own_metrics,
    score_at_equal,
)
from flsel.comparison.judging.pairs import Pairs, form_pairs
from flsel.comparison.judging.ranks import Ranking, rank
from flsel.comparison.judging.settings import Options
from flsel.comparison.judging.summaries import Analysis, Difference, Key, Reached, Summary
from flsel.comparison.judging.time_to_target import TargetTime, summarise
from flsel.comparison.run_table import Run, complete
from flsel.runner.cost_axes import COST_AXES

_Row = TypeVar("_Row", Summary, Reached, Difference)


def analyse(
    runs: Sequence[Run], options: Options, target: Target | None, tuned: Mapping[str, Tuning]
) -> Analysis:
    """Judge runs."""
    empty = Analysis(
        runs=tuple(runs),
        variants=tuple(dict.fromkeys(run.variant for run in runs)),
        scenarios=tuple(dict.fromkeys(run.scenario for run in runs)),
        options=options,
        target=target,
        measures=measures(options.last, own_metrics(complete(runs)), options.score),
        values=_values(runs, options.last),
        summaries={},
        reached={},
        differences={},
        pairs={},
        ranking=None,
        tuned=tuned,
    )
    cells = [(v, s) for s in empty.scenarios for v in empty.variants]
    summaries = _by_key(found for v, s in cells for found in _summaries(empty, v, s))
    reached = _by_key(found for v, s in cells for found in _reached(empty, v, s))
    pairs = form_pairs(runs, options.baseline, unpaired=options.unpaired)
    judged = replace(empty, summaries=summaries, reached=reached, pairs=pairs)
    decided = claims(pairs, runs, options) if options.until_decided else (
        fixed_claims(pairs, runs, options, _claimed(judged))
    )  # fmt: skip
    judged = replace(judged, claims=tuple(claim.marked(options.changes) for claim in decided))
    differences = _by_key(d for v, s in cells if (v, s) in pairs for d in _differences(judged, v, s))
    return replace(judged, differences=differences, ranking=_ranking(judged))


def _claimed(analysis: Analysis) -> list[Deciding]:
    """Return what the claims of a fixed number of seeds are about: the score, and costs to a target.

    A target that was chosen after the runs allows no claim. It makes a family that was declared no smaller.
    """
    last, target, score = analysis.options.last, analysis.target, analysis.options.score
    found = [Deciding(ACCURACY, last, score=score)]
    if target is None or (target.chosen_after and not analysis.declares_target):
        return found
    before = (change.before for change in analysis.options.changes if change.what == "cost")
    costs = dict.fromkeys((analysis.options.cost, *before, "simulated_seconds"))
    there = {reached.measure for reached in analysis.reached.values()}
    return found + [Deciding(c, last, target.value, score) for c in costs if arrival_name(c, last) in there]


def _by_key(rows: Iterable[_Row]) -> dict[Key, _Row]:
    return {(row.variant, row.scenario, row.measure): row for row in rows}


def _as_decided(analysis: Analysis, variant: str, scenario: str) -> Pairs:
    """Return the pairs that the last look of their claim used; later ones count for no claim."""
    pairs = analysis.pairs[variant, scenario]
    own = (c for c in analysis.claims if c.variant == variant and c.scenario in (scenario, MEAN))
    claim: Claim | None = next(own, None)
    if claim is None or not analysis.options.until_decided:
        return pairs
    kept = [at for at, run in enumerate(pairs.ours) if run.seed in claim.used]
    ours, theirs = (tuple(side[at] for at in kept) for side in (pairs.ours, pairs.theirs))
    return replace(pairs, ours=ours, theirs=theirs)


def _values(runs: Sequence[Run], last: int) -> dict[str, dict[str, float]]:
    """Measure the complete runs, by folder; at equal costs a scenario's runs are measured together."""
    done = complete(runs)
    found = {str(run.folder): measure(run, last) for run in done}
    for scenario in {run.scenario for run in done}:
        for folder, more in score_at_equal([r for r in done if r.scenario == scenario], last).items():
            found[folder] |= more
    return found


def _summaries(analysis: Analysis, variant: str, scenario: str) -> list[Summary]:
    runs = analysis.of(variant, scenario)
    found = []
    for name in analysis.measures:
        values = {run.seed: v for run in runs if (v := _value(analysis, run, name)) is not None}
        if values:
            listed = list(values.values())
            mean, iqm = mean_interval(listed, analysis.options.level), interquartile_mean(listed)
            # No share lies beyond 1, and little of what is measured below 0.
            most = 1.0 if analysis.measures[name].unit == "%" else math.inf
            mean = replace(mean, low=max(mean.low, analysis.measures[name].lowest), high=min(mean.high, most))
            found.append(Summary(variant, scenario, name, mean, iqm, values))
    return found


def _value(analysis: Analysis, run: Run, name: str) -> float | None:
    value = analysis.values[str(run.folder)].get(name)
    return value if value is not None and math.isfinite(value) else None


def _reached(analysis: Analysis, variant: str, scenario: str) -> list[Reached]:
    runs = analysis.of(variant, scenario)
    if analysis.target is None or not runs:
        return []
    found = []
    key = (variant, scenario, "diverged")
    lost = [run.seed for run in analysis.runs if (run.variant, run.scenario, run.status) == key]
    for window in dict.fromkeys((1, analysis.options.last)):
        ways = {run.seed: arrivals(run, analysis.target, window) for run in runs}
        for cost in COST_AXES:
            if all(cost in way for way in ways.values()):
                by_seed = {seed: way[cost] for seed, way in ways.items()}
                most = max(float(run.columns[cost][-1]) for run in runs)
                by_seed |= {seed: TargetTime(most, reached=False) for seed in lost}  # never arrives
                found.append(
                    Reached(
                        variant,
                        scenario,
                        cost,
                        window,
                        summarise(list(by_seed.values()), analysis.options.level),
                        by_seed,
                    )
                )
    return found


def _differences(analysis: Analysis, variant: str, scenario: str) -> list[Difference]:
    pairs = _as_decided(analysis, variant, scenario)
    windows = dict.fromkeys((1, analysis.options.last)) if analysis.target is not None else ()
    made = [_difference(analysis, pairs, variant, scenario, name) for name in analysis.measures]
    made += [_to_target(analysis, pairs, variant, scenario, c, w) for w in windows for c in COST_AXES]
    return [found for found in made if found is not None]


def _difference(
    analysis: Analysis, pairs: Pairs, variant: str, scenario: str, name: str
) -> Difference | None:
    ours, theirs = (
        {run.seed: value for run in side if (value := _value(analysis, run, name)) is not None}
        for side in (pairs.ours, pairs.theirs)
    )
    seeds = tuple(seed for seed in ours if seed in theirs) if pairs.paired else ()
    if pairs.paired:
        ours, theirs = ({seed: side[seed] for seed in seeds} for side in (ours, theirs))
    measured, options = analysis.measures[name], analysis.options
    found = _compared(measured.kind, list(ours.values()), list(theirs.values()), options, pairs.paired)
    if found is None:
        return None
    within = possible(found.difference, 1.0 if measured.unit == "%" else math.inf)
    found = replace(found, difference=within)
    return Difference(variant, scenario, name, measured.kind, found, seeds, pairs.paired)


def _to_target(
    analysis: Analysis, pairs: Pairs, variant: str, scenario: str, cost: str, window: int
) -> Difference | None:
    """Compare costs to the target; of runs that are not paired, those that arrive, and without a claim."""
    name, options = arrival_name(cost, window), analysis.options
    mine, yours = (analysis.arrival(who, scenario, name) for who in (variant, options.baseline))
    if mine is None or yours is None:
        return None
    one, two = [mine.arrivals[r.seed] for r in pairs.ours], [yours.arrivals[r.seed] for r in pairs.theirs]
    late, known = sum(not a.reached for a in (*one, *two)), None
    if not one or not two or late == len(one) + len(two):
        return None  # no run reached the target: there is nothing to compare
    seeds = [r.seed for r in pairs.ours] if pairs.paired else []
    if late and pairs.paired:
        if min(a.at for a in (*one, *two)) <= 0:
            return None
        ends = [bounds(*both) for both in zip(one, two, strict=True)]
        found, known = compare_late(ends, options.looks, options.level)
        seeds = [seed for seed, pair in zip(seeds, ends, strict=True) if pair.exact]
    else:
        ours, theirs = ([a.at for a in side if a.reached] for side in (one, two))
        made = _compared("ratio", ours, theirs, options, pairs.paired)
        if made is None:
            return None
        found = replace(made, p=1.0) if late else made
    return Difference(variant, scenario, name, "ratio", found, tuple(seeds), pairs.paired, known, late)


def _compared(
    kind: Kind, ours: Sequence[float], theirs: Sequence[float], options: Options, paired: bool
) -> Paired | None:
    one, two = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    if len(one) == 0 or len(two) == 0:
        return None
    if kind == "ratio":
        if min(one.min(), two.min()) <= 0:
            return None  # one of them spends nothing: a ratio says nothing
        one, two = np.log(one), np.log(two)
    if paired:
        return compare_pairs(one, two, options.looks, options.level)
    return Paired(*welch_interval(one, two, options.level))


def _ranking(analysis: Analysis) -> Ranking | None:
    """Rank variants in the scenarios that have all of them, over their common seeds.

    A run that diverged ranks last. Ranks only describe where their scenarios, variants, seeds or evaluations
    were chosen when results could be seen.
    """
    if len(analysis.scenarios) < 2 or len(analysis.variants) < 2:
        return None
    worst = -analysis.options.score.gains * math.inf
    ended: dict[tuple[str, str], dict[int, float]] = {}
    for run in analysis.runs:
        if run.status == "diverged":
            ended.setdefault((run.variant, run.scenario), {})[run.seed] = worst
    for s in analysis.summaries.values():
        if s.measure == analysis.main:
            ended.setdefault((s.variant, s.scenario), {}).update(s.values)
    rows = [[ended.get((v, s), {}) for v in analysis.variants] for s in analysis.scenarios]
    values = [row for row in rows if all(row)]
    seeds = sorted(set.intersection(*(set(v) for row in values for v in row))) if values else []
    if len(values) < 2 or not seeds:
        return None
    scores = np.array([[[v[seed] for v in row] for row in values] for seed in seeds])
    scores = scores * math.copysign(1.0, analysis.options.score.gains)  # larger is better
    chosen = {"last", "level", "seeds", "variants", "scenarios", "runs"}
    changed = any(change.what in chosen for change in analysis.options.changes)
    return rank(scores, analysis.options.level, described=analysis.options.until_decided or changed)
