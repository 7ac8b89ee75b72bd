"""Verdicts by rule: one plain sentence a claim, and what must be known to believe them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flsel.comparison.judging import words
from flsel.comparison.judging.results import Analysis, Difference, arrival_name
from flsel.comparison.judging.statistics import Estimate, seeds_to_reject

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


def notes(analysis: Analysis) -> list[str]:
    """Return what limits the claims: seeds, pairing, missing runs, fairness; one sentence each."""
    return [
        *_about_seeds(analysis),
        *_about_length(analysis),
        *_about_targets(analysis),
        *_about_pairs(analysis),
        *_about_tuning(analysis),
        *_about_missing(analysis),
    ]


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
        f"in {ours.found.reached} of {ours.found.n} seeds, {base} in {theirs.found.reached} of "
        f"{theirs.found.n}"
    )
    found = analysis.difference(variant, setting, name)
    if not ours.found.reached and not theirs.found.reached:
        text = f"Neither {variant} nor {base} reaches {goal} in {ours.found.horizon:g} rounds."
        yield Verdict("open", text)
    elif found is None or found.shown.n < 2 or found.equal:
        yield Verdict("open", f"{variant} reaches {goal} {arrived}.")
    else:
        late = [[a.at for a in side.arrivals.values() if not a.reached] for side in (ours, theirs)]
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


def _about_seeds(analysis: Analysis) -> Iterator[str]:
    compared = [d for d in analysis.differences if d.measure == analysis.main]
    if not compared:
        alone = len(analysis.variants) == 1
        why = "there is one variant" if alone else "no variant shares a finished seed with the baseline"
        yield f"Nothing is compared: {why}."
        return
    fewest, family = min(d.found.difference.n for d in compared), len(compared)
    if fewest < 2:
        yield "One seed shows no spread: numbers stand without intervals, and no claim is made."
        return
    needed = seeds_to_reject(family)
    if fewest < needed and all(d.paired for d in compared):
        corrected = f", corrected for {family} comparisons" if family > 1 else ""
        yield (
            f"The exact sign-flip test cannot reject at 5 % with {fewest} seeds{corrected}, whatever the "
            f"runs show; {needed} seeds could. Claims rest on the t intervals, which assume more."
        )
    resolvable = [d.found.resolvable for d in compared if math.isfinite(d.found.resolvable)]
    if max(resolvable, default=0.0) > 0:
        yield (
            f"With {words.seeds(fewest)} a difference of {100 * max(resolvable):.1f} points of accuracy is "
            "found four times in five; smaller ones may stay unseen."
        )


def _about_length(analysis: Analysis) -> Iterator[str]:
    last, asked = analysis.options.last, analysis.options.asked
    if last < asked:
        yield (
            f"Runs are so short that means are of {last} evaluation{'s' if last > 1 else ''}, half of what "
            f"the shortest run has, and not of {asked}."
        )


def _about_targets(analysis: Analysis) -> Iterator[str]:
    if analysis.target is None:
        yield "There is no target accuracy, so no cost to reach one: give --target."
    elif analysis.target.chosen_after:
        yield (
            f"The target of {100 * analysis.target.accuracy:g} % was chosen after the fact: costs to it "
            "are a description, not a test. Give --target beforehand."
        )


def _about_pairs(analysis: Analysis) -> Iterator[str]:
    problems = [problem for pairs in analysis.pairs.values() for problem in pairs.problems]
    yield from (f"{problem}." for problem in problems)
    used = [pairs for pairs in analysis.pairs.values() if pairs.ours]
    if used and all(pairs.verified for pairs in used):
        yield (
            "Pairs are verified: under one seed all variants had the same partition, holdouts, "
            "availability and initial model."
        )
    elif used and not problems:
        yield ("Pairs are taken from equal settings and seeds; the runs keep no fingerprints to prove it.")


def _about_tuning(analysis: Analysis) -> Iterator[str]:
    judged = {run.seed for run in analysis.runs if run.status == "complete"}
    for variant, tuning in analysis.tuned.items():
        shared = sorted(judged & set(tuning.seeds))
        if shared:
            yield (
                f"{variant} was tuned on seeds {', '.join(map(str, shared))} ({tuning.sweep}), which judge "
                "it here: its lead is flattered. Compare under other seeds."
            )
    budgets = {variant: tuning.trials * tuning.rounds for variant, tuning in analysis.tuned.items()}
    untuned = [variant for variant in analysis.variants if variant not in budgets]
    if budgets and untuned:
        yield f"{', '.join(budgets)} was tuned, and {', '.join(untuned)} was not."
    if len(set(budgets.values())) > 1:
        listed = ", ".join(f"{variant} {rounds:,} rounds" for variant, rounds in budgets.items())
        yield f"Tuning budgets differ: {listed}."


def _about_missing(analysis: Analysis) -> Iterator[str]:
    for status, count in Counter(run.status for run in analysis.runs).items():
        if status != "complete":
            total = len(analysis.runs)
            yield f"{count} of {total} runs {_BECAME[status]}: they count nowhere and are listed."
    for variant in analysis.variants:
        runs = [run for run in analysis.runs if run.variant == variant]
        lost = sum(run.status == "diverged" for run in runs)
        if lost == len(runs):
            yield f"All runs of {variant} diverged: it has no numbers."
        elif lost:
            yield f"{lost} of {len(runs)} runs of {variant} diverged: what the others show flatters it."


_BECAME = {
    "missing": "are not played yet",
    "unfinished": "are not finished",
    "diverged": "diverged",
    "failed": "failed",
    "excluded": "were left out for other settings",
}
