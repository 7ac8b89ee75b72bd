"""Verdicts about costs to a target: how many runs reach it, and at which cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flsel.comparison.judging import formatting
from flsel.comparison.judging.statistics import FEWEST_SEEDS, Estimate
from flsel.comparison.judging.summaries import Analysis, Difference, Reached, arrival_name
from flsel.comparison.judging.verdict import Verdict
from flsel.runner.cost_axes import COST_AXES


def target_verdicts(analysis: Analysis, variant: str, scenario: str) -> Iterator[Verdict]:
    """Compare the cost to the target of a variant and the baseline in a scenario."""
    if analysis.target is None:
        return
    base, name = analysis.options.baseline, analysis.to_target
    ours, theirs = (analysis.arrival(v, scenario, name) for v in (variant, base))
    if ours is None or theirs is None:
        return
    goal = f"{formatting.goal(analysis.target, analysis.options.last)}{formatting.where(scenario)}"
    arrived = (
        f"{variant} reaches {goal} in {ours.found.reached} of {formatting.seeds(ours.found.n)}, {base} in "
        f"{theirs.found.reached} of {theirs.found.n}"
    )
    found = analysis.difference(variant, scenario, name)
    if not ours.found.reached and not theirs.found.reached:
        yield Verdict("open", f"Neither {variant} nor {base} reaches {goal}.", "Not reached")
    elif found is None or found.shown.n < 2 or found.equal:
        yield Verdict("exploratory", f"{arrived}.", "Exploratory")
    else:
        yield _ratio(analysis, found, ours, theirs, arrived)


def time_verdicts(analysis: Analysis, variant: str, scenario: str) -> Iterator[Verdict]:
    """Compare simulated seconds to the target, split into rounds and seconds a round."""
    if analysis.target is None or analysis.options.cost == "simulated_seconds":
        return
    last, base = analysis.options.last, analysis.options.baseline
    names = [arrival_name(cost, last) for cost in ("simulated_seconds", "rounds")]
    seconds, rounds = (analysis.difference(variant, scenario, name) for name in names)
    if seconds is None or rounds is None or seconds.shown.n < 2 or seconds.equal:
        return
    goal = f"{formatting.goal(analysis.target, last)}{formatting.where(scenario)}"
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
    tail = _never(late, analysis)
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


def saves(analysis: Analysis, variant: str, scenario: str) -> bool:
    """Tell whether the verdict is that a variant needs significantly less of the cost to the target."""
    found = target_verdicts(analysis, variant, scenario)
    ratio = analysis.difference(variant, scenario, analysis.to_target)
    return ratio is not None and ratio.shown.value < 1 and any(v.kind == "resolved" for v in found)


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


def ratio_cell(analysis: Analysis, variant: str, scenario: str, name: str) -> str:
    """Write a ratio of costs to the target for a table: a bound where runs of one side never arrived."""
    found = analysis.difference(variant, scenario, name)
    ours, theirs = (analysis.arrival(v, scenario, name) for v in (variant, analysis.options.baseline))
    if found is None or ours is None or theirs is None:
        return "-"
    late = [_late(side, found) for side in (ours, theirs)]
    value, bracket, ends = formatting.ratio(found.shown).partition(" [")
    low, _, high = ends.removesuffix("]").partition(", ")
    sign = ""
    if late[0] and late[1]:
        sign = "about "
    elif late[0]:
        sign, high = ">= ", "inf"
    elif late[1]:
        sign, low = "<= ", "0"
    return f"{sign}{value}" + (f" [{low}, {high}]" if bracket else "")


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


def _never(late: list[list[float]], analysis: Analysis) -> str:
    """Say how runs enter that never arrived."""
    if not late[0] and not late[1]:
        return ""
    unit = COST_AXES[analysis.options.cost].unit
    end = f"{formatting.number(min([*late[0], *late[1]]), unit)} {unit}"
    if analysis.options.sequential is not None:
        end = "the larger total of their pair"
    what = {
        (True, False): "so the ratio is a lower bound",
        (False, True): "so the ratio is an upper bound",
    }.get((bool(late[0]), bool(late[1])), "on both sides, so the ratio says little")
    return f" Runs that did not reach the target enter as {end}, {what}."


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
