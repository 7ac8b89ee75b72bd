"""The first sentence of a report: what to take, by how much, and at what cost; or that nothing was found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from flsel.comparison.judging import formatting
from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.judging.claim_words import difference, label, margin, subject
from flsel.comparison.judging.claims import MEAN, Claim
from flsel.comparison.judging.designs import FEWEST_SEEDS
from flsel.comparison.judging.procedure import nothing_compared
from flsel.runner.cost_axes import COST_AXES


def headline(analysis: Analysis) -> str:
    """Say which variant to take, by how much it is better than the baseline, and what it costs.

    The variant is the one that is better in most scenarios, less those in which it is worse, and of these the
    one that gains most. Where no variant gains in what decides, one that saves cost is named, unless its
    score is worse in some scenario.
    """
    about = [c for c in analysis.claims if c.measure == analysis.deciding and c.kind == "mean"]
    if nothing := nothing_compared(analysis):
        return f"{nothing}{_against(analysis, about)}"
    best = _best(about)
    if best:
        return _take(analysis, best, _losses(about, best[0].variant))
    lost = {claim.variant for claim in about if _is(claim, "worse")}
    saved = [
        c for c in analysis.claims
        if c.measure == analysis.to_target and c.kind == "mean" and c.variant not in lost
    ]  # fmt: skip
    cheaper = _best(saved) if analysis.deciding == analysis.main else []
    words = analysis.options.score.words
    if cheaper:
        losses = _losses(saved, cheaper[0].variant)
        return f"{_take(analysis, cheaper, losses)[:-1]}, with no significant difference in {words}."
    return f"{_nothing(analysis, about)}{_against(analysis, about)}"


def _is(claim: Claim, kind: str) -> bool:
    return claim.made and claim.decision.claim == kind


def _best(about: Sequence[Claim]) -> list[Claim]:
    """Return the claims of the variant to take: those in which it is better; none if there is none."""
    by_variant: dict[str, list[Claim]] = {}
    for claim in about:
        if _is(claim, "better"):
            by_variant.setdefault(claim.variant, []).append(claim)

    def rank(name: str) -> tuple[int, float]:
        won = by_variant[name]
        return len(won) - _losses(about, name), sum(map(_gain, won)) / len(won)

    return by_variant[max(by_variant, key=rank)] if by_variant else []


def _losses(about: Iterable[Claim], variant: str) -> int:
    return sum(_is(claim, "worse") for claim in about if claim.variant == variant)


def _gain(claim: Claim) -> float:
    """Return the mean of a claim; where runs are late the bound that it is about."""
    end = claim.decision.looks[-1]
    return end.least if claim.late and math.isfinite(end.least) else end.mean


def _take(analysis: Analysis, won: Sequence[Claim], losses: int) -> str:
    """Write the recommendation, with the scenarios in which it is worse."""
    first, base, many = won[0], analysis.options.baseline, len(analysis.scenarios)
    gain = sum(map(_gain, won)) / len(won)
    where = f" in {len(won)} of {many} scenarios" if many > 1 else ""
    where = f", averaged over {many} scenarios" if first.scenario == MEAN else where
    where += f", worse in {losses}" if losses else ""
    if all(claim.decision.within_margin for claim in won):
        where += f", which is less than the margin of {margin(first.deciding, first.design)}"
    size = difference(first.deciding, gain)
    if first.deciding.target is None:
        score = analysis.options.score
        than = f"of {score.words} over" if score.is_share else f"in {score.words} against"
        return f"Take {first.variant}: {size} {than} {base}{where}{_cost(analysis, first.variant)}."
    most = "at most " if any(c.late for c in won) else ""
    axis = COST_AXES[first.deciding.name].label
    also = _score(analysis, first.variant) if analysis.deciding != analysis.main else ""
    target = first.deciding.score.shown(first.deciding.target)
    return f"Take {first.variant}: {most}{size} the {axis} of {base} to {target}{where}{also}."


def _score(analysis: Analysis, variant: str) -> str:
    """Say how the score differs where a cost decides, in the only scenario."""
    found = analysis.difference(variant, analysis.scenarios[0], analysis.main)
    if found is None or len(analysis.scenarios) > 1:
        return ""
    score = analysis.options.score
    size = formatting.gain(score.gains * found.shown.value, score)
    return f", at {size} {'points of' if score.is_share else 'in'} {score.words} (exploratory)"


def _nothing(analysis: Analysis, about: Sequence[Claim]) -> str:
    base = analysis.options.baseline
    same = dict.fromkeys(c.variant for c in about if _is(c, "equivalent"))
    also = f" Equivalent within the margin: {', '.join(same)}." if same else ""
    if analysis.options.until_decided:
        what = subject(analysis.options.decides_about)
        return f"No variant is decided to be better than {base} in {what}.{also}"
    most = max((claim.looked for claim in about), default=0)
    if most < FEWEST_SEEDS:
        carry = "carries" if most == 1 else "carry"
        return f"Exploratory: {formatting.seeds(most)} {carry} no claim, which needs at least {FEWEST_SEEDS}."
    changed = [claim for claim in about if claim.exploratory]
    if len(changed) == len(about) or any(claim.decision.decided for claim in changed):
        return "Exploratory: what is claimed was changed when results could be seen."
    if same and len(same) == len(analysis.variants) - 1:
        return also.strip()
    score = analysis.options.score.words
    if any(claim.withheld or _is(claim, "worse") for claim in about):
        return f"No variant is significantly better than {base} in {score}.{also}"
    return f"No significant difference in {score} was found.{also}{_ahead(analysis, about)}"


def _ahead(analysis: Analysis, about: Sequence[Claim]) -> str:
    """Describe the variant with the largest mean difference, in the only scenario."""
    ahead = [c for c in about if c.shown and c.paired and c.decision.claim == "open" and not c.exploratory]
    if len(analysis.scenarios) > 1 or not ahead:
        return ""
    best = max(ahead, key=lambda c: c.decision.looks[-1].mean)
    shown, base, score = best.shown, analysis.options.baseline, analysis.options.score
    if shown is None or score.gains * shown.value <= 0:
        return ""
    won = int((best.lower > 0).sum())
    size, *ends = (
        "" if math.isnan(x) else formatting.gain(score.gains * x, score)
        for x in (shown.value, shown.low, shown.high)
    )
    interval = "" if math.isnan(shown.low) else f" [{', '.join(ends)}]"
    numbers = f"{size}{interval} {score.unit}".rstrip()
    return (
        f" {best.variant} is ahead of {base} in {won} of {formatting.seeds(shown.n)}, "
        f"{numbers}: more seeds would tell."
    )


def _against(analysis: Analysis, about: Sequence[Claim]) -> str:
    """Name the variants that are worse, that are not called so, and that diverge more, or less, often."""
    base, text = analysis.options.baseline, ""
    if worse := dict.fromkeys(claim.variant for claim in about if _is(claim, "worse")):
        text = f" Significantly worse: {', '.join(worse)}."
    for name, side in {c.variant: side for c in about if (side := c.withheld)}.items():
        text += f" {name} is not called {side}: runs of {name if side == 'better' else base} diverged."
    counts = [c for c in analysis.claims if c.kind == "divergence"]
    for kind, often in (("worse", "more"), ("better", "less")):
        if names := dict.fromkeys(claim.variant for claim in counts if _is(claim, kind)):
            text += f" Diverges {often} often than {base}: {', '.join(names)}."
    return text


def _cost(analysis: Analysis, variant: str) -> str:
    """Say what a variant spends until the target, or in all, against the baseline."""
    axis, base = COST_AXES[analysis.options.cost], analysis.options.baseline
    scenario = analysis.scenarios[0]
    if len(analysis.scenarios) > 1:
        return ""
    goal = "" if analysis.target is None else f" to {analysis.target.shown}"
    found = analysis.difference(variant, scenario, analysis.to_target)
    sides = [analysis.arrival(name, scenario, analysis.to_target) for name in (variant, base)]
    if found is not None and all(side is not None and side.reached == side.n for side in sides):
        claim = analysis.claim(variant, scenario, analysis.to_target)
        how = "exploratory" if claim is None else "" if claim.made else label(claim).lower()
        how = f" ({how})" if how else ""
        return f"; it takes {formatting.times(found.shown.value)} the {axis.label}{goal}{how}"
    total = analysis.difference(variant, scenario, f"total/{axis.name}")
    if axis.name != "rounds" and total is not None:
        return f"; it takes {formatting.times(total.shown.value)} the {axis.label} in all"
    if None in sides or analysis.target is None:
        return ""
    reached = [f"{side.reached} of {side.n}" for side in sides if side is not None]
    return f"; it reaches {analysis.target.shown} in {reached[0]} runs, {base} in {reached[1]}"
