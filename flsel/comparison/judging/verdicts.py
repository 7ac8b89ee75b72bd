"""Verdicts by rule: one plain sentence a claim."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flsel.comparison.judging import words
from flsel.comparison.judging.results import Analysis, Difference, arrival_name
from flsel.comparison.judging.statistics import Estimate

Kind = Literal["resolved", "open"]
MOST_OPEN = 12  # More open claims over several settings than anybody reads before the rest.


@dataclass(frozen=True)
class Verdict:
    """One claim.

    Attributes:
        kind: ``resolved`` if chance is excluded at 5 %, corrected for all comparisons in the measure.
        text: The sentence.
    """

    kind: Kind
    text: str


def verdicts(analysis: Analysis) -> list[Verdict]:
    """Return the claims: for every variant in every setting its accuracy and its way to the target.

    Over several settings their ranking comes first, and what is resolved before what is open.
    """
    found: list[Verdict] = []
    for setting in analysis.settings:
        for variant in analysis.variants:
            if variant != analysis.options.baseline:
                found += _accuracy(analysis, variant, setting)
                found += _target(analysis, variant, setting)
    if len(analysis.settings) > 1:
        found.sort(key=lambda verdict: verdict.kind == "open")
    return [*_ranks(analysis), *found]


def folded(analysis: Analysis) -> tuple[list[Verdict], list[Verdict]]:
    """Split the claims into those to show and those to fold away: the open ones, where there are too many."""
    found = verdicts(analysis)
    ranks = int(analysis.ranking is not None)
    shown = [v for at, v in enumerate(found) if at < ranks or v.kind == "resolved"]
    if len(analysis.settings) == 1 or len(found) - len(shown) <= MOST_OPEN:
        return found, []
    return shown, found[len(shown) :]


def _accuracy(analysis: Analysis, variant: str, setting: str) -> Iterator[Verdict]:
    found = analysis.difference(variant, setting, analysis.main)
    if found is None:
        return
    # Added to zero, what is rounded to it loses its sign.
    points = found.shown.map(lambda x: round(100 * x, 1) + 0.0)
    base, where = analysis.options.baseline, words.where(setting)
    what = f"in test accuracy (mean of the last {analysis.options.last} evaluations)"
    if found.found.difference.n < 2:
        yield Verdict(
            "open",
            f"{variant}{where} is {points.value:+.1f} points from {base} {what}, with one seed: that says "
            "nothing about chance.",
        )
    elif found.equal:
        said = f"is {points.value:+.1f} points from" if points.value else "is the same as"
        yield Verdict(
            "open",
            f"{variant}{where} {said} {base} {what} under every one of {words.seeds(points.n)}: nothing "
            "varies, so no test applies.",
        )
    elif found.resolved:
        side = "above" if found.shown.value > 0 else "below"
        low, high = sorted((abs(points.low), abs(points.high)))
        yield Verdict(
            "resolved",
            f"{variant}{where} ends {abs(points.value):.1f} points {side} {base} {what}; 95 % interval "
            f"{low:.1f} to {high:.1f}, {words.seeds(points.n)}.",
        )
    else:
        yield Verdict(
            "open",
            f"{variant}{where} and {base} are not told apart {what} with {words.seeds(points.n)}: difference "
            f"{points.value:+.1f} points, 95 % interval {points.low:+.1f} to {points.high:+.1f}"
            f"{_missing_seeds(found)}",
        )


def _missing_seeds(found: Difference) -> str:
    """Say why a difference is not resolved, and what would resolve it."""
    interval = found.found.difference
    if interval.low > 0 or interval.high < 0:
        return f", which excludes zero, but not corrected for all comparisons (p = {found.p_holm:.2f})."
    if not found.paired:
        return "; the runs are not paired."
    needed = found.found.seeds_needed
    if needed is None:
        return "; more than 1,000 seeds would be needed."
    if needed <= interval.n:
        return "; a few more seeds may resolve it."
    return f"; about {needed} seeds would be needed."


def _target(analysis: Analysis, variant: str, setting: str) -> Iterator[Verdict]:
    if analysis.target is None:
        return
    last, base = analysis.options.last, analysis.options.baseline
    name = arrival_name("rounds", last)
    ours, theirs = (analysis.arrival(v, setting, name) for v in (variant, base))
    if ours is None or theirs is None:
        return
    goal = f"{words.goal(analysis.target, last)}{words.where(setting)}"
    arrived = (
        f"in {ours.found.reached} of {words.seeds(ours.found.n)}, {base} in {theirs.found.reached} of "
        f"{theirs.found.n}"
    )
    found = analysis.difference(variant, setting, name)
    if not ours.found.reached and not theirs.found.reached:
        text = f"Neither {variant} nor {base} reaches {goal} in {ours.found.horizon:g} rounds."
        yield Verdict("open", text)
    elif found is None or found.shown.n < 2 or found.equal:
        yield Verdict("open", f"{variant} reaches {goal} {arrived}.")
    else:
        # Runs that are in no pair count nowhere in the ratio.
        late = [
            [a.at for seed, a in side.arrivals.items() if not a.reached and found.counts(seed)]
            for side in (ours, theirs)
        ]
        horizon = min([*late[0], *late[1]], default=0.0)
        tail = f"; it gets there {arrived}, and the others count as {horizon:g} rounds" if horizon else ""
        yield _ratio(analysis, found, goal, _BOUND[bool(late[0]), bool(late[1])], tail)


# What a ratio is when runs of the variant, or of the baseline, count as having arrived at the horizon.
_BOUND = {(False, False): "", (True, False): "at least ", (False, True): "at most ", (True, True): "about "}


def _ratio(analysis: Analysis, found: Difference, goal: str, bound: str, tail: str) -> Verdict:
    base, shown = analysis.options.baseline, found.shown
    if found.resolved:
        return Verdict(
            "resolved",
            f"{found.variant} reaches {goal} in {bound}{_factor(shown)} the rounds of {base} (95 % interval "
            f"{shown.low:.2f} to {shown.high:.2f}, {words.seeds(shown.n)}){_price(analysis, found)}{tail}.",
        )
    return Verdict(
        "open",
        f"{found.variant} and {base} are not told apart in rounds to {goal} with {words.seeds(shown.n)}: "
        f"ratio {shown.value:.2f}, 95 % interval {shown.low:.2f} to {shown.high:.2f}{tail}"
        f"{_missing_seeds(found)}",
    )


def _factor(ratio: Estimate) -> str:
    return words.ratio(ratio).partition(" [")[0]


def _price(analysis: Analysis, found: Difference) -> str:
    models = analysis.difference(found.variant, found.setting, arrival_name("models", analysis.options.last))
    return "" if models is None else f" at {_factor(models.shown)} the models sent down"


def _ranks(analysis: Analysis) -> Iterator[Verdict]:
    ranking = analysis.ranking
    if ranking is None:
        return
    order = sorted(zip(ranking.mean_ranks, analysis.variants, strict=True))
    (first, best), (second, next_best) = order[0], order[1]
    listed = ", ".join(f"{variant} {value:.2f}" for value, variant in order)
    sure = second - first > ranking.critical_difference and not ranking.p > 0.05
    told = "is the best" if sure else f"is not told apart from {next_best}"
    friedman = "" if math.isnan(ranking.p) else f"; Friedman's p {_relation(ranking.p)}"
    yield Verdict(
        "resolved" if sure else "open",
        f"Over {ranking.settings} settings {best} {told} by mean rank ({listed}; critical difference "
        f"{ranking.critical_difference:.2f}{friedman}).",
    )


def _relation(p: float) -> str:
    shown = words.p_value(p)
    return shown if shown.startswith("<") else f"= {shown}"
