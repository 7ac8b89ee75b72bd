"""The first sentence of a report: what to take, by how much, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Mapping

from flsel.comparison.judging import formatting
from flsel.comparison.judging.claim_formatting import subject
from flsel.comparison.judging.claims import MEAN
from flsel.comparison.judging.estimates import FEWEST_SEEDS
from flsel.comparison.judging.summaries import Analysis
from flsel.comparison.judging.target_verdicts import saves
from flsel.runner.cost_axes import COST_AXES


def headline(analysis: Analysis) -> str:
    """Say which variant to take, by how much it is better than the baseline, and what it costs.

    The variant is the one with the largest significant gain in what decides: test accuracy, or the cost to
    the target that claims are about. Over several scenarios it is the one that is better in most of them.
    Where no variant gains accuracy, one that saves cost is named, unless its accuracy is worse.
    """
    if len(analysis.variants) < 2:
        return f"There is one variant, {analysis.variants[0]}: nothing is compared."
    decided = analysis.options.sequential is not None
    gains = _decided_gains(analysis) if decided else _gains(analysis, analysis.main)
    if not gains:
        return ("" if decided else _saved(analysis)) or f"{_nothing(analysis)}{_worse(analysis)}"
    best, mean, where = _best(analysis, gains)
    if analysis.deciding != analysis.main:
        return f"Take {best}: {_times(analysis, best, mean)}{where}{_accuracy(analysis, best)}."
    points = formatting.points(mean / 100)
    base, cost = analysis.options.baseline, _cost(analysis, best)
    return f"Take {best}: {points} points of test accuracy over {base}{where}{cost}."


Gains = Mapping[str, Mapping[str, float]]


def _best(analysis: Analysis, gains: Gains) -> tuple[str, float, str]:
    """Return the variant that gains most, its mean gain, and in how many scenarios it gains."""
    best = max(gains, key=lambda name: (len(gains[name]), sum(gains[name].values()) / len(gains[name])))
    mean, many = sum(gains[best].values()) / len(gains[best]), len(analysis.scenarios)
    where = f" in {len(gains[best])} of {many} scenarios" if many > 1 and MEAN not in gains[best] else ""
    return best, mean, where


def _decided_gains(analysis: Analysis) -> Gains:
    """Return by variant and scenario what was decided to be better, in the unit of what decides."""
    found: dict[str, dict[str, float]] = {}
    for claim in analysis.claims:
        if claim.decision.claim == "better":
            found.setdefault(claim.variant, {})[claim.scenario] = claim.decision.looks[-1].mean
    return found


def _gains(analysis: Analysis, measure: str) -> Gains:
    """Return by variant and scenario the significant gains: points of accuracy, logarithms of costs saved."""
    found: dict[str, dict[str, float]] = {}
    for d in analysis.differences:
        if d.measure == measure and d.resolved:
            gain = 100 * d.shown.value if measure == analysis.main else -d.claimed.value
            if gain > 0:
                found.setdefault(d.variant, {})[d.scenario] = gain
    return found


def _saved(analysis: Analysis) -> str:
    """Name the variant that saves most of the cost asked for, unless its accuracy is worse; else nothing."""
    worse = {d.variant for d in analysis.differences if d.measure == analysis.main and d.resolved}
    gains = {
        variant: {s: gain for s, gain in found.items() if saves(analysis, variant, s)}
        for variant, found in _gains(analysis, analysis.to_target).items()
        if variant not in worse
    }
    gains = {variant: found for variant, found in gains.items() if found}
    if not gains:
        return ""
    best, mean, where = _best(analysis, gains)
    size = _times(analysis, best, mean)
    return f"Take {best}: {size}{where}, with no significant difference in test accuracy."


def _times(analysis: Analysis, variant: str, gain: float) -> str:
    """Write a cost against the baseline's; at most so much where only runs of the baseline never arrive."""
    options, accuracy = analysis.options, 0.0 if analysis.target is None else analysis.target.accuracy
    sides = [
        [found for s in analysis.scenarios if (found := analysis.arrival(name, s, analysis.to_target))]
        for name in (variant, options.baseline)
    ]
    late = [any(found.found.reached < found.found.n for found in side) for side in sides]
    most = "at most " if late == [False, True] else ""
    label = COST_AXES[options.cost].label
    ratio = formatting.times(math.exp(-gain))
    return f"{most}{ratio} the {label} of {options.baseline} to {100 * accuracy:g} %"


def _accuracy(analysis: Analysis, variant: str) -> str:
    """Say how the accuracy differs where a cost decides, in the only scenario."""
    found = analysis.difference(variant, analysis.scenarios[0], analysis.main)
    if found is None or len(analysis.scenarios) > 1:
        return ""
    return f", at {formatting.points(found.shown.value)} points of test accuracy (exploratory)"


def _nothing(analysis: Analysis) -> str:
    base, how = analysis.options.baseline, analysis.options.sequential
    if how is not None:
        same = [c.variant for c in analysis.claims if c.decision.claim == "equivalent"]
        also = f" Equivalent within the margin: {', '.join(dict.fromkeys(same))}." if same else ""
        what = subject(how.deciding(analysis.options.last))
        return f"No variant is decided to be better than {base} in {what}.{also}"
    most = max((d.found.difference.n for d in analysis.differences if d.measure == analysis.main), default=0)
    if most < FEWEST_SEEDS:
        return (
            f"Exploratory: {formatting.seeds(most)} show no significant difference; a claim needs at least "
            f"{FEWEST_SEEDS}."
        )
    return f"No significant difference in test accuracy was found.{_ahead(analysis)}"


def _ahead(analysis: Analysis) -> str:
    """Describe the variant with the largest mean difference, in the only scenario."""
    main = [d for d in analysis.differences if d.measure == analysis.main and d.paired and d.found.values]
    if len(analysis.scenarios) > 1 or not main:
        return ""
    best = max(main, key=lambda d: d.shown.value)
    values, base = best.found.values, analysis.options.baseline
    if best.resolved or best.shown.value <= 0:
        return ""
    won = sum(value > 0 for value in values)
    ends = f"[{formatting.points(best.shown.low)}, {formatting.points(best.shown.high)}]"
    return (
        f" {best.variant} is ahead of {base} in {won} of {formatting.seeds(len(values))}, "
        f"{formatting.points(best.shown.value)} {ends} points: more seeds would tell."
    )


def _worse(analysis: Analysis) -> str:
    if analysis.options.sequential is not None:
        worse = [c.variant for c in analysis.claims if c.decision.claim == "worse"]
    else:
        main = [d for d in analysis.differences if d.measure == analysis.main]
        worse = [d.variant for d in main if d.resolved and d.shown.value < 0]
    return f" Significantly worse: {', '.join(dict.fromkeys(worse))}." if worse else ""


def _cost(analysis: Analysis, variant: str) -> str:
    """Say what a variant spends until the target, or in all, against the baseline."""
    axis, base = COST_AXES[analysis.options.cost], analysis.options.baseline
    scenario = analysis.scenarios[0]
    if len(analysis.scenarios) > 1:
        return ""
    goal = "" if analysis.target is None else f" to {100 * analysis.target.accuracy:g} %"
    found = analysis.difference(variant, scenario, analysis.to_target)
    sides = [analysis.arrival(name, scenario, analysis.to_target) for name in (variant, base)]
    if found is not None and all(side is not None and side.found.reached == side.found.n for side in sides):
        return f", for {formatting.ratio(found.shown).partition(' [')[0]} the {axis.label}{goal}"
    total = analysis.difference(variant, scenario, f"total/{axis.name}")
    if axis.name != "rounds" and total is not None:
        return f", for {formatting.ratio(total.shown).partition(' [')[0]} the {axis.label} in all"
    if None in sides or analysis.target is None:
        return ""
    reached = [f"{side.found.reached} of {side.found.n}" for side in sides if side is not None]
    return f"; it reaches {100 * analysis.target.accuracy:g} % in {reached[0]} runs, {base} in {reached[1]}"
