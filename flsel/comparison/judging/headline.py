"""The first sentence of a report: what to take, by how much, and at what cost."""

from __future__ import annotations

from flsel.comparison.judging import formatting
from flsel.comparison.judging.claims import MEAN
from flsel.comparison.judging.results import Analysis
from flsel.comparison.judging.statistics import FEWEST_SEEDS
from flsel.runner.cost_axes import COST_AXES


def headline(analysis: Analysis) -> str:
    """Say which variant to take, by how much it is better than the baseline, and what it costs.

    The variant is the one with the largest significant gain in test accuracy. Over several scenarios it is
    the one that is better in most of them.
    """
    if len(analysis.variants) < 2:
        return f"There is one variant, {analysis.variants[0]}: nothing is compared."
    base, gains = analysis.options.baseline, _gains(analysis)
    if not gains:
        return f"{_nothing(analysis)}{_worse(analysis)}"
    best = max(gains, key=lambda name: (len(gains[name]), sum(gains[name].values()) / len(gains[name])))
    scenarios, mean = gains[best], sum(gains[best].values()) / len(gains[best])
    points = formatting.points(mean)
    many = len(analysis.scenarios)
    where = f" in {len(scenarios)} of {many} scenarios" if many > 1 and MEAN not in scenarios else ""
    cost = _cost(analysis, best)
    return f"Take {best}: {points} points of test accuracy over {base}{where}{cost}."


def _gains(analysis: Analysis) -> dict[str, dict[str, float]]:
    """Return by variant and scenario the gains in accuracy that are significant, or were decided."""
    found: dict[str, dict[str, float]] = {}
    if analysis.options.sequential is not None:
        for claim in analysis.claims:
            if claim.decision.claim == "better":
                found.setdefault(claim.variant, {})[claim.scenario] = claim.decision.looks[-1].mean / 100
        return found
    for d in analysis.differences:
        if d.measure == analysis.main and d.resolved and d.shown.value > 0:
            found.setdefault(d.variant, {})[d.scenario] = d.shown.value
    return found


def _nothing(analysis: Analysis) -> str:
    base = analysis.options.baseline
    if analysis.options.sequential is not None:
        same = [c.variant for c in analysis.claims if c.decision.claim == "equivalent"]
        also = f" Equivalent within the margin: {', '.join(dict.fromkeys(same))}." if same else ""
        return f"Keep {base}: no variant is decided to be better in test accuracy.{also}"
    most = max((d.found.difference.n for d in analysis.differences if d.measure == analysis.main), default=0)
    if most < FEWEST_SEEDS:
        return (
            f"Exploratory: {formatting.seeds(most)} show no significant difference; a claim needs at least "
            f"{FEWEST_SEEDS}."
        )
    return f"Keep {base}, unless costs decide: no variant is significantly better in test accuracy."


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
