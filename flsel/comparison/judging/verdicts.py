"""Verdicts by rule: every claim in a sentence, and what is described beside the claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flsel.comparison.judging import formatting
from flsel.comparison.judging.analysis import Analysis, Key
from flsel.comparison.judging.claim_words import label, sentence, subject
from flsel.comparison.judging.claims import MEAN, Claim
from flsel.comparison.judging.measures import arrival_name
from flsel.comparison.judging.ranks import Ranking
from flsel.comparison.judging.summaries import Difference
from flsel.metrics import SCORE
from flsel.runner.cost_axes import COST_AXES

Kind = Literal["resolved", "open", "exploratory"]
MOST_OPEN = 8  # More claims without a result than a reader goes through before the table.


@dataclass(frozen=True)
class Verdict:
    """One sentence of a report.

    Attributes:
        kind: ``resolved`` if a claim is decided, corrected for all of its family; ``exploratory`` if the
            data can carry no claim; else ``open``.
        text: The sentence.
        label: One or two words of it, such as "Better".
    """

    kind: Kind
    text: str
    label: str


def verdicts(analysis: Analysis) -> list[Verdict]:
    """Return the claims, and descriptions of what is measured besides.

    Over several scenarios their ranking comes first, and what is resolved before what is open.
    """
    found: list[Verdict] = []
    for scenario in analysis.scenarios:
        for variant in analysis.variants:
            if variant != analysis.options.baseline:
                found += _about(analysis, variant, scenario)
    if len(analysis.scenarios) > 1:
        found.sort(key=lambda verdict: verdict.kind != "resolved")
    several = [claim_verdict(analysis, c) for c in analysis.claims] if analysis.options.until_decided else []
    ranks = [] if analysis.ranking is None else [_ranked(analysis.ranking, analysis.variants)]
    return [*several, *ranks, *found]


def folded(analysis: Analysis) -> tuple[list[Verdict], list[Verdict]]:
    """Split the verdicts into those to show and those to fold away: open ones, where there are too many."""
    found = verdicts(analysis)
    first = int(analysis.ranking is not None)
    first += len(analysis.claims) if analysis.options.until_decided else 0
    shown = [v for at, v in enumerate(found) if at < first or v.kind == "resolved"]
    if len(found) - len(shown) <= MOST_OPEN:
        return found, []
    return shown, [v for v in found if v not in shown]


def claim_verdict(analysis: Analysis, claim: Claim) -> Verdict:
    """Write a claim."""
    named = label(claim)
    kind: Kind = "resolved" if claim.made else "exploratory" if named == "Exploratory" else "open"
    return Verdict(kind, sentence(claim, analysis.options.baseline, len(analysis.scenarios)), named)


def _ranked(ranking: Ranking, variants: Sequence[str]) -> Verdict:
    """Write a ranking."""
    order = sorted(zip(ranking.mean_ranks, variants, strict=True))
    (first, best), (second, next_best) = order[0], order[1]
    listed = ", ".join(f"{variant} {value:.2f}" for value, variant in order)
    over = f"over {ranking.scenarios} scenarios"
    best = f"{best} has" if second > first else f"{best} and {next_best} have"
    if not ranking.can_decide:
        why = "Ranks are described here, and not tested." if ranking.described else (
            f"{formatting.seeds(ranking.seeds).capitalize()} and {len(variants)} variants cannot decide a "
            "ranking."
        )  # fmt: skip
        text = f"{best} the best mean rank {over} (mean ranks {listed}). {why}"
        return Verdict("exploratory", text, "Exploratory")
    numbers = (
        f"mean ranks {listed}, critical difference {ranking.critical_difference:.2f}, test that no variant "
        f"differs p {formatting.relation(ranking.p)}, blocks are the {formatting.seeds(ranking.seeds)}"
    )
    if second - first > ranking.critical_difference and ranking.p <= 1 - ranking.level:
        return Verdict("resolved", f"{best} the significantly best mean rank {over} ({numbers}).", "Best")
    between = f"{order[0][1]} and {next_best} {over} ({numbers})"
    return Verdict("open", f"No significant difference in mean rank between {between}.", "Not significant")


def _about(analysis: Analysis, variant: str, scenario: str) -> Iterator[Verdict]:
    """Yield the claims about a variant in a scenario, and a description of every other measure shown."""
    seconds = arrival_name("simulated_seconds", analysis.options.last)
    for name in dict.fromkeys((analysis.main, analysis.to_target, seconds, *analysis.own)):
        split = _seconds_a_round(analysis, variant, scenario) if name == seconds else ""
        own = [c for c in analysis.claims if (c.variant, c.measure) == (variant, name)]
        own = [c for c in own if c.scenario in (scenario, MEAN)]
        for claim in own if not analysis.options.until_decided else ():
            verdict = claim_verdict(analysis, claim)
            yield replace(verdict, text=verdict.text + split) if claim.kind == "mean" else verdict
        if not any(claim.kind == "mean" for claim in own):
            found = analysis.difference(variant, scenario, name)
            text = _described(analysis, (variant, scenario, name), found) if found is not None else ""
            if text:
                yield Verdict("exploratory", text + split, "Exploratory")
            elif name == analysis.to_target:
                yield from _not_reached(analysis, variant, scenario)


def _described(analysis: Analysis, key: Key, found: Difference) -> str:
    """Describe a measure that no claim is about."""
    (variant, scenario, name), where = key, formatting.where(key[1])
    base, last = analysis.options.baseline, analysis.options.last
    few = formatting.seeds(found.estimate.n) if found.paired else "runs not paired"
    level = f"{100 * analysis.options.level:g} % interval"
    why = _no_claim(analysis, found)
    if found.kind == "ratio":
        if found.estimate.n < 1 or analysis.target is None:
            return ""
        sides = [analysis.arrival(v, scenario, name) for v in (variant, base)]
        reached = [side for side in sides if side is not None]
        goal = f"{formatting.goal(analysis.target, last)}{where}"
        axis = COST_AXES[name.partition("/")[0]].label
        pairs = f" in the {formatting.count(len(found.values), 'pair')} in which both arrive"
        pairs = (pairs if found.paired else " over the runs that arrive") if found.censored else ""
        ends = (
            f", {level} {found.shown.low:.2f} to {found.shown.high:.2f}"
            if found.shown.low < found.shown.high
            else ""
        )
        return (
            f"{variant} reaches {goal} in {reached[0].reached} of {formatting.seeds(reached[0].n)}, "
            f"{base} in {reached[1].reached} of {reached[1].n}. {variant} takes "
            f"{formatting.times(found.shown.value)} the {axis} of {base}{pairs}{ends}, {few}.{why}"
        )
    mean = f" (mean of the last {last} evaluations)" if last > 1 else ""
    measured = f"in test {name.partition('/')[0]}{mean}"
    if found.paired and not found.values.any():
        return f"{variant} equals {base}{where} {measured} under each of {few}.{why}"
    points = name.startswith("accuracy/")
    size = [
        formatting.gain(100 * x, SCORE) if points else f"{x:+.3g}"
        for x in (found.shown.value, found.shown.low, found.shown.high)
    ]
    ends = f", {level} {size[1]} to {size[2]}" if found.shown.low < found.shown.high else ""
    by = f"{size[0]}{' points' if points else ''}{ends}"
    return f"{variant} differs from {base}{where} {measured} by {by}, {few}.{why}"


def _no_claim(analysis: Analysis, found: Difference) -> str:
    """Say why there is no claim about a measure."""
    if found.kind == "ratio" and analysis.target is not None and analysis.target.chosen_after:
        return " The target was chosen after the runs."
    about = {subject(claim.deciding): None for claim in analysis.claims}
    return f" The claims are about {' and '.join(about)}." if about else ""


def _not_reached(analysis: Analysis, variant: str, scenario: str) -> Iterator[Verdict]:
    """Say it where neither of the two reaches the target."""
    base = analysis.options.baseline
    sides = [analysis.arrival(v, scenario, analysis.to_target) for v in (variant, base)]
    if analysis.target is None or any(side is None or side.reached for side in sides):
        return
    goal = f"{formatting.goal(analysis.target, analysis.options.last)}{formatting.where(scenario)}"
    yield Verdict("open", f"Neither {variant} nor {base} reaches {goal}.", "Not reached")


def _seconds_a_round(analysis: Analysis, variant: str, scenario: str) -> str:
    """Split simulated seconds to the target into rounds and seconds a round."""
    last = analysis.options.last
    names = [arrival_name(cost, last) for cost in ("simulated_seconds", "rounds")]
    seconds, rounds = (analysis.difference(variant, scenario, name) for name in names)
    if seconds is None or rounds is None or seconds.shown.n < 2:
        return ""
    # Both are geometric means over the same runs, so that their ratio is that of the seconds a round.
    return (
        f" That is {rounds.shown.value:.2f} x the rounds at {seconds.shown.value / rounds.shown.value:.2f} x "
        "the simulated seconds a round."
    )
