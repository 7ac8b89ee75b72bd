"""Verdicts by rule: one sentence a claim, in the words of a statistics section."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flsel.comparison.judging import formatting
from flsel.comparison.judging.claim_verdicts import claim_text
from flsel.comparison.judging.claims import MEAN
from flsel.comparison.judging.results import Analysis, Difference, Reached, arrival_name
from flsel.comparison.judging.statistics import FEWEST_SEEDS, Estimate
from flsel.runner.cost_axes import COST_AXES

Kind = Literal["resolved", "open", "exploratory"]
MOST_OPEN = 12  # More open claims over several settings than a reader goes through before the rest.


@dataclass(frozen=True)
class Verdict:
    """One claim.

    Attributes:
        kind: ``resolved`` if the claim is significant or decided, corrected for all comparisons of its
        family;
            ``exploratory`` if the data can carry no claim; else ``open``.
        text: The sentence.
        label: One or two words of it, such as "Significant".
    """

    kind: Kind
    text: str
    label: str


def verdicts(analysis: Analysis) -> list[Verdict]:
    """Return the claims: for every variant in every setting its accuracy and its cost to the target.

    Over several settings their ranking comes first, and what is resolved before what is open.
    """
    found: list[Verdict] = []
    for setting in analysis.settings:
        for variant in analysis.variants:
            if variant != analysis.options.baseline:
                if analysis.options.sequential is None:
                    found += _accuracy(analysis, variant, setting)
                found += _target(analysis, variant, setting)
                found += _time(analysis, variant, setting)
    if len(analysis.settings) > 1:
        found.sort(key=lambda verdict: verdict.kind != "resolved")
    return [*_decided(analysis), *_ranks(analysis), *found]


def folded(analysis: Analysis) -> tuple[list[Verdict], list[Verdict]]:
    """Split the claims into those to show and those to fold away: the open ones, where there are too many."""
    found = verdicts(analysis)
    first = len(analysis.claims) + int(analysis.ranking is not None)
    shown = [v for at, v in enumerate(found) if at < first or v.kind == "resolved"]
    if len(analysis.settings) == 1 or len(found) - len(shown) <= MOST_OPEN:
        return found, []
    return shown, [v for v in found if v not in shown]


def _decided(analysis: Analysis) -> Iterator[Verdict]:
    for claim in analysis.claims:
        where = "" if claim.scenario == MEAN else formatting.where(claim.scenario)
        text = claim_text(claim, analysis.options, where, len(analysis.settings))
        label = {"open": "Not decided", "undecided": "Undecided"}.get(
            claim.decision.claim, claim.decision.claim.capitalize()
        )
        yield Verdict("resolved" if claim.decision.decided else "open", text, label)


def _what(analysis: Analysis) -> str:
    last = analysis.options.last
    mean = f" (mean of the last {last} evaluations)" if last > 1 else ""
    return f"in test accuracy{mean}"


def _accuracy(analysis: Analysis, variant: str, setting: str) -> Iterator[Verdict]:
    found = analysis.difference(variant, setting, analysis.main)
    if found is None:
        return
    base, where, what = analysis.options.baseline, formatting.where(setting), _what(analysis)
    points, n = formatting.points(found.shown.value), found.found.difference.n
    if n < 2:
        text = f"{variant} differs from {base}{where} {what} by {points} points with one seed. "
        yield Verdict(
            "exploratory",
            text + "One seed shows no spread, so nothing can be said about chance.",
            "Exploratory",
        )
    elif found.equal:
        said = f"differs from {base}{where} {what} by {points} points" if found.shown.value else (
            f"equals {base}{where} {what}"
        )  # fmt: skip
        text = f"{variant} {said} under each of {formatting.seeds(n)}. Nothing varies, so no test applies."
        yield Verdict("open", text, "No test")
    elif n < FEWEST_SEEDS:
        text = f"{variant} differs from {base}{where} {what} by {_numbers(found, p=False)}."
        text += _says_nothing(found) or f" A claim needs at least {FEWEST_SEEDS} seeds."
        yield Verdict("exploratory", text, "Exploratory")
    elif found.resolved:
        side = "better" if found.shown.value > 0 else "worse"
        text = (
            f"{variant} is significantly {side} than {base}{where} {what}{_holm(found)} ({_numbers(found)})."
        )
        yield Verdict("resolved", text, side.capitalize())
    else:
        text = f"No significant difference {what} between {variant} and {base}{where}{_holm(found)} "
        yield Verdict("open", f"{text}({_numbers(found)}).{_seeds_needed(found)}", "Not significant")


def _holm(found: Difference) -> str:
    return " after Holm correction" if found.comparisons > 1 else ""


def _numbers(found: Difference, *, p: bool = True) -> str:
    """Write estimate, interval, corrected interval of a significant difference, p and seeds."""
    value, low, high = (formatting.points(x) for x in (found.shown.value, found.shown.low, found.shown.high))
    parts = [f"{value} points", f"95 % interval {low} to {high}"]
    wide = found.shown_corrected
    if found.resolved and wide is not None and found.comparisons > 1:
        ends = f"{formatting.points(wide.low)} to {formatting.points(wide.high)}"
        parts.append(f"{ends} corrected for {found.comparisons} comparisons")
    if p:
        parts.append(f"p {formatting.relation(found.p_holm)}")
    parts.append(formatting.seeds(found.shown.n) if found.paired else "runs not paired")
    return ", ".join(parts)


def _says_nothing(found: Difference) -> str:
    """Say it where the interval is wider than anything that could be measured."""
    if max(abs(found.shown.low), abs(found.shown.high)) < 1:
        return ""
    return f" {formatting.seeds(found.shown.n).capitalize()} say nothing about the size of this difference."


def _seeds_needed(found: Difference) -> str:
    """Say how many seeds would give 80 % power, and how uncertain that number is."""
    needed = found.seeds_needed
    if needed is None or not found.paired:
        return ""
    shown = [
        f"{n:,}" if n is not None else "more than 1,000" for n in (needed.value, needed.low, needed.high)
    ]
    if needed.value is not None and needed.value <= found.found.difference.n:
        return ""
    return (
        f" A difference of this size takes about {shown[0]} seeds for 80 % power (95 % interval {shown[1]} "
        f"to {shown[2]})."
    )


def _target(analysis: Analysis, variant: str, setting: str) -> Iterator[Verdict]:
    if analysis.target is None:
        return
    base, name = analysis.options.baseline, analysis.to_target
    ours, theirs = (analysis.arrival(v, setting, name) for v in (variant, base))
    if ours is None or theirs is None:
        return
    goal = f"{formatting.goal(analysis.target, analysis.options.last)}{formatting.where(setting)}"
    arrived = (
        f"{variant} reaches {goal} in {ours.found.reached} of {formatting.seeds(ours.found.n)}, {base} in "
        f"{theirs.found.reached} of {theirs.found.n}"
    )
    found = analysis.difference(variant, setting, name)
    if not ours.found.reached and not theirs.found.reached:
        yield Verdict("open", f"Neither {variant} nor {base} reaches {goal}.", "Not reached")
    elif found is None or found.shown.n < 2 or found.equal:
        yield Verdict("exploratory", f"{arrived}.", "Exploratory")
    else:
        yield _ratio(analysis, found, ours, theirs, arrived)


def _time(analysis: Analysis, variant: str, setting: str) -> Iterator[Verdict]:
    """Compare simulated seconds to the target, split into rounds and seconds a round."""
    if analysis.target is None or analysis.options.cost == "simulated_seconds":
        return
    last, base = analysis.options.last, analysis.options.baseline
    names = [arrival_name(cost, last) for cost in ("simulated_seconds", "rounds")]
    seconds, rounds = (analysis.difference(variant, setting, name) for name in names)
    if seconds is None or rounds is None or seconds.shown.n < 2 or seconds.equal:
        return
    goal = f"{formatting.goal(analysis.target, last)}{formatting.where(setting)}"
    shown, about = seconds.shown, "about " if seconds.censored else ""
    # Both are geometric means over the same runs, so that their ratio is that of the seconds a round.
    split = (
        f"{about}{rounds.shown.value:.2f} x the rounds at {about}{shown.value / rounds.shown.value:.2f} x "
        "the simulated seconds a round"
    )
    p = "" if math.isnan(seconds.p_holm) else f", p {formatting.relation(seconds.p_holm)}"
    interval = f"95 % interval {shown.low:.2f} to {shown.high:.2f}{p}, {formatting.seeds(shown.n)}"
    reach = (
        f"{variant} reaches {goal} in {about}{shown.value:.2f} x the simulated seconds of {base} "
        f"({interval}): {split}."
    )
    late = seconds.censored > 0
    if (
        shown.n < FEWEST_SEEDS
        or seconds.measure not in analysis.family
        or analysis.options.sequential is not None
    ):
        yield Verdict("exploratory", reach, "Exploratory")
    elif seconds.resolved and not late:
        yield Verdict("resolved", reach, "Significant")
    else:
        text = (
            f"No significant difference between {variant} and {base} in simulated seconds to {goal}: ratio "
            f"{about}{shown.value:.2f} ({interval}), {split}."
        )
        yield Verdict("open", text, "Not significant")


def _ratio(analysis: Analysis, found: Difference, ours: Reached, theirs: Reached, arrived: str) -> Verdict:
    base, axis, shown = analysis.options.baseline, COST_AXES[analysis.options.cost], found.shown
    late = [_late(side, found) for side in (ours, theirs)]
    who = f"{found.variant} takes {_bound(shown, late)} the {axis.label} of {base}"
    p = "" if math.isnan(found.p_holm) else f", p {formatting.relation(found.p_holm)}{_after(found)}"
    numbers = f"{_interval(shown, late)}{p}, {formatting.seeds(shown.n)}"
    tail = _never(late, axis.name, found, ours, theirs)
    exploratory = shown.n < FEWEST_SEEDS or analysis.to_target not in analysis.family
    if exploratory or analysis.options.sequential is not None:
        return Verdict("exploratory", f"{arrived}. {who} ({numbers}).{tail}", "Exploratory")
    if found.resolved and _supported(shown, late, ours, theirs):
        side = "fewer" if shown.value < 1 else "more"
        text = f"{found.variant} needs significantly {side} {axis.label} than {base}"
        return Verdict(
            "resolved", f"{arrived}. {text}: {_bound(shown, late)} ({numbers}).{tail}", "Significant"
        )
    if all(late) and (better := _arrives_more(ours, theirs, found)):
        return Verdict("open", f"{arrived}. {_paired_bound(analysis, *better, found)} ({numbers}).", "Bound")
    text = f"No significant difference in {axis.label}: the ratio is {_bound(shown, late)} ({numbers})."
    return Verdict("open", f"{arrived}. {text}{tail}", "Not significant")


def _arrives_more(ours: Reached, theirs: Reached, found: Difference) -> tuple[Reached, Reached] | None:
    """Return the side that arrives in more seeds and the other, if the other arrives in no further seed."""
    mine, yours = (
        {seed for seed, a in side.arrivals.items() if a.reached and found.counts(seed)}
        for side in (ours, theirs)
    )
    if mine == yours or not found.paired:
        return None
    if mine >= yours:
        return ours, theirs
    return (theirs, ours) if yours >= mine else None


def _paired_bound(analysis: Analysis, more: Reached, fewer: Reached, found: Difference) -> str:
    """Write the bound from the seeds in which one side arrives: the other takes at least its whole run."""
    seeds = [seed for seed in found.seeds if more.arrivals[seed].reached]
    logs = [math.log(fewer.arrivals[seed].at / more.arrivals[seed].at) for seed in seeds]
    ratio = math.exp(sum(logs) / len(logs))
    label = COST_AXES[analysis.options.cost].label
    return (
        f"In the {formatting.seeds(len(seeds))} in which {more.variant} arrives, {fewer.variant} takes at "
        f"least {ratio:.2f} x its {label}; over all seeds there is no significant difference"
    )


def _after(found: Difference) -> str:
    return " after Holm correction" if found.comparisons > 1 else ""


def _late(side: Reached, found: Difference) -> list[float]:
    """Return where runs ended that had not arrived and are compared."""
    return [a.at for seed, a in side.arrivals.items() if not a.reached and found.counts(seed)]


def _bound(shown: Estimate, late: list[list[float]]) -> str:
    """Write a ratio; it is a bound where runs of one side never arrived."""
    said = {(False, False): "", (True, False): "at least ", (False, True): "at most ", (True, True): "about "}
    return said[bool(late[0]), bool(late[1])] + formatting.ratio(shown).partition(" [")[0]


def _interval(shown: Estimate, late: list[list[float]]) -> str:
    """Write the interval of a ratio; on the side of the runs that never arrived it has no end."""
    low, high = f"{shown.low:.2f}", f"{shown.high:.2f}"
    if late[0] and not late[1]:
        return f"95 % interval from {low}, without an upper end"
    if late[1] and not late[0]:
        return f"95 % interval up to {high}, without a lower end"
    return f"95 % interval {low} to {high}"


def _never(late: list[list[float]], cost: str, found: Difference, ours: Reached, theirs: Reached) -> str:
    """Say how runs enter that never arrived."""
    if not late[0] and not late[1]:
        return ""
    horizon = min([*late[0], *late[1]])
    unit = COST_AXES[cost].unit
    what = {
        (True, False): "so the ratio is a lower bound",
        (False, True): "so the ratio is an upper bound",
    }.get((bool(late[0]), bool(late[1])), "on both sides, so the ratio says little")
    return f" Runs that did not reach the target enter as {formatting.number(horizon, unit)} {unit}, {what}."


def _supported(shown: Estimate, late: list[list[float]], ours: Reached, theirs: Reached) -> bool:
    """Tell whether runs that never arrived leave the direction of a ratio standing.

    A lower bound below one, or an upper bound above one, supports nothing. Nor does a variant that is faster
    on average and arrives less often.
    """
    faster = shown.value < 1
    if (late[0] and faster) or (late[1] and not faster):
        return False
    share = ours.found.reached / ours.found.n - theirs.found.reached / theirs.found.n
    return share >= 0 if faster else share <= 0


def _ranks(analysis: Analysis) -> Iterator[Verdict]:
    ranking = analysis.ranking
    if ranking is None:
        return
    order = sorted(zip(ranking.mean_ranks, analysis.variants, strict=True))
    (first, best), (second, next_best) = order[0], order[1]
    listed = ", ".join(f"{variant} {value:.2f}" for value, variant in order)
    sure = ranking.can_decide and second - first > ranking.critical_difference and not ranking.p > 0.05
    friedman = "" if math.isnan(ranking.p) else f", Friedman's p {formatting.relation(ranking.p)}"
    numbers = f"mean ranks {listed}, critical difference {ranking.critical_difference:.2f}{friedman}"
    if not ranking.can_decide:
        text = (
            f"{best} has the best mean rank over {ranking.settings} scenarios ({numbers}). So few scenarios "
            "and variants cannot decide a ranking."
        )
        yield Verdict("exploratory", text, "Exploratory")
    elif sure:
        yield Verdict(
            "resolved", f"{best} has the significantly best mean rank over {ranking.settings} "
            f"scenarios ({numbers}).",
            "Best",
        )  # fmt: skip
    else:
        text = (
            f"No significant difference in mean rank between {best} and {next_best} over {ranking.settings} "
        )
        yield Verdict("open", f"{text}scenarios ({numbers}).", "Not significant")
