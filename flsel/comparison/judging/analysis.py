"""From runs to numbers: every variant summarised, and compared with the baseline in every setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flsel.comparison.grid import Tuning
from flsel.comparison.judging.arrival import restricted, summarise
from flsel.comparison.judging.measures import COSTS, Kind, Target, arrivals, measure, measures
from flsel.comparison.judging.pairing import Pairs, pair
from flsel.comparison.judging.ranking import Ranking, rank
from flsel.comparison.judging.results import Analysis, Difference, Options, Reached, Summary, arrival_name
from flsel.comparison.judging.statistics import (
    Estimate,
    Paired,
    compare_pairs,
    holm,
    interquartile_mean,
    mean_interval,
    welch_interval,
)
from flsel.comparison.reading import Run


def analyse(
    runs: Sequence[Run], options: Options, target: Target | None, tuned: Mapping[str, Tuning]
) -> Analysis:
    """Judge runs.

    Args:
        runs: All runs of a comparison.
        options: How; the baseline has at least one complete run.
        target: Test accuracy to reach, or None.
        tuned: By variant the sweep that tuned it.
    """
    empty = Analysis(
        runs=tuple(runs),
        variants=tuple(dict.fromkeys(run.variant for run in runs)),
        settings=tuple(dict.fromkeys(run.setting for run in runs)),
        options=options,
        target=target,
        measures=measures(options.last),
        values={str(r.folder): measure(r, options.last) for r in runs if r.status == "complete"},
        summaries=(),
        reached=(),
        differences=(),
        pairs={},
        ranking=None,
        tuned=tuned,
    )
    cells = [(v, s) for s in empty.settings for v in empty.variants]
    summaries = tuple(found for v, s in cells for found in _summaries(empty, v, s))
    reached = tuple(found for v, s in cells for found in _reached(empty, v, s))
    pairs = {
        (s, v): pair(empty.of(v, s), empty.of(options.baseline, s), unpaired=options.unpaired)
        for v, s in cells
        if v != options.baseline
    }
    judged = replace(empty, summaries=summaries, reached=reached, pairs=pairs)
    differences = [d for (s, v), found in pairs.items() for d in _differences(judged, v, s, found)]
    return replace(judged, differences=_corrected(differences), ranking=_ranking(judged))


def _summaries(analysis: Analysis, variant: str, setting: str) -> list[Summary]:
    runs = analysis.of(variant, setting)
    found = []
    for name in analysis.measures:
        values = {run.seed: v for run in runs if (v := _value(analysis, run, name)) is not None}
        if values:
            listed = list(values.values())
            mean, iqm = mean_interval(listed), interquartile_mean(listed)
            # No share lies beyond 1, and nothing that is measured below 0.
            most = 1.0 if analysis.measures[name].unit == "%" else math.inf
            mean = replace(mean, low=max(mean.low, 0.0), high=min(mean.high, most))
            found.append(Summary(variant, setting, name, mean, iqm, values))
    return found


def _value(analysis: Analysis, run: Run, name: str) -> float | None:
    value = analysis.values[str(run.folder)].get(name)
    return value if value is not None and math.isfinite(value) else None


def _reached(analysis: Analysis, variant: str, setting: str) -> list[Reached]:
    runs = analysis.of(variant, setting)
    if analysis.target is None or not runs:
        return []
    found = []
    for window in dict.fromkeys((1, analysis.options.last)):
        ways = {run.seed: arrivals(run, analysis.target, window) for run in runs}
        for cost in COSTS:
            if all(cost in way for way in ways.values()):
                by_seed = {seed: way[cost] for seed, way in ways.items()}
                found.append(
                    Reached(variant, setting, cost, window, summarise(list(by_seed.values())), by_seed)
                )
    return found


def _differences(analysis: Analysis, variant: str, setting: str, pairs: Pairs) -> list[Difference]:
    windows = dict.fromkeys((1, analysis.options.last)) if analysis.target is not None else ()
    made = [_difference(analysis, pairs, variant, setting, name) for name in analysis.measures]
    made += [_to_target(analysis, pairs, variant, setting, c, w) for w in windows for c in COSTS]
    return [found for found in made if found is not None]


def _difference(analysis: Analysis, pairs: Pairs, variant: str, setting: str, name: str) -> Difference | None:
    ours = {run.seed: v for run in pairs.ours if (v := _value(analysis, run, name)) is not None}
    theirs = {run.seed: v for run in pairs.theirs if (v := _value(analysis, run, name)) is not None}
    shared = [seed for seed in ours if seed in theirs] if pairs.paired else []
    if pairs.paired:
        ours, theirs = ({seed: side[seed] for seed in shared} for side in (ours, theirs))
    what = _Sides(variant, setting, name, analysis.measures[name].kind, pairs.paired)
    return _compared(what, list(ours.values()), list(theirs.values()), shared)


def _to_target(
    analysis: Analysis, pairs: Pairs, variant: str, setting: str, cost: str, window: int
) -> Difference | None:
    name = arrival_name(cost, window)
    mine = analysis.arrival(variant, setting, name)
    yours = analysis.arrival(analysis.options.baseline, setting, name)
    if mine is None or yours is None:
        return None
    one, two = [mine.arrivals[r.seed] for r in pairs.ours], [yours.arrivals[r.seed] for r in pairs.theirs]
    late = [a for a in (*one, *two) if not a.reached]
    if not one or not two or len(late) == len(one) + len(two):
        return None  # nobody arrived: there is nothing to compare
    horizon = min((a.at for a in late), default=math.inf)
    made = _compared(
        _Sides(variant, setting, name, "ratio", pairs.paired),
        list(restricted(one, horizon)),
        list(restricted(two, horizon)),
        [r.seed for r in pairs.ours] if pairs.paired else [],
    )
    return None if made is None else replace(made, censored=len(late))


@dataclass(frozen=True)
class _Sides:
    variant: str
    setting: str
    measure: str
    kind: Kind
    paired: bool


def _compared(
    what: _Sides, ours: Sequence[float], theirs: Sequence[float], seeds: list[int]
) -> Difference | None:
    one, two = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    if len(one) == 0 or len(two) == 0:
        return None
    if what.kind == "ratio":
        if min(one.min(), two.min()) <= 0:
            return None  # one of them spends nothing: a ratio says nothing
        one, two = np.log(one), np.log(two)
    if what.paired:
        found = compare_pairs(one, two)
    else:
        difference, p = welch_interval(one, two)
        unknown = Estimate(math.nan, math.nan, math.nan, 0)
        found = Paired(difference, p, math.nan, math.nan, math.nan, None, unknown)
    return Difference(what.variant, what.setting, what.measure, what.kind, found, tuple(seeds), what.paired)


def _corrected(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """Correct p-values for all comparisons in the same measure, over variants and settings."""
    found = {id(d): d for d in differences}
    for name in dict.fromkeys(d.measure for d in differences):
        family = [d for d in differences if d.measure == name]
        adjusted = holm([d.found.p for d in family])
        exact = holm([d.found.p_exact for d in family])
        for d, p, p_exact in zip(family, adjusted, exact, strict=True):
            found[id(d)] = replace(d, p_holm=p, p_exact_holm=p_exact)
    return tuple(found.values())


def _ranking(analysis: Analysis) -> Ranking | None:
    """Rank variants by the mean over seeds of the main measure, where all settings have all variants."""
    if len(analysis.settings) < 2 or len(analysis.variants) < 2:
        return None
    table = [
        [
            found.mean.value if (found := analysis.summary(v, s, analysis.main)) else math.nan
            for v in analysis.variants
        ]
        for s in analysis.settings
    ]
    scores = np.array(table)
    whole = scores[np.isfinite(scores).all(axis=1)]
    return rank(whole) if len(whole) >= 2 else None
