"""Verdicts about costs to a target: how many runs reach it, and at which cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flsel.comparison.judging import formatting
from flsel.comparison.judging.estimates import FEWEST_SEEDS
from flsel.comparison.judging.summaries import Analysis, Difference, arrival_name
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
    elif found is None or found.pairs < 2:
        yield Verdict("exploratory", f"{arrived}.", "Exploratory")
    else:
        yield _ratio(analysis, found, arrived)


def time_verdicts(analysis: Analysis, variant: str, scenario: str) -> Iterator[Verdict]:
    """Compare simulated seconds to the target, split into rounds and seconds a round."""
    if analysis.target is None or analysis.options.cost == "simulated_seconds":
        return
    last, base = analysis.options.last, analysis.options.baseline
    names = [arrival_name(cost, last) for cost in ("simulated_seconds", "rounds")]
    seconds, rounds = (analysis.difference(variant, scenario, name) for name in names)
    if seconds is None or rounds is None or seconds.shown.n < 2:
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


def _ratio(analysis: Analysis, found: Difference, arrived: str) -> Verdict:
    """Write what became of a ratio of costs to the target."""
    base, axis = analysis.options.baseline, COST_AXES[analysis.options.cost]
    p = "" if math.isnan(found.p_holm) else f", p {formatting.relation(found.p_holm)}{_after(found)}"
    said = _known(found, axis.label, base, p)
    numbers = f"{formatting.times(found.shown.value)} ({_numbers(found, p)})"
    exploratory = found.pairs < FEWEST_SEEDS or analysis.to_target not in analysis.family
    if exploratory or analysis.options.sequential is not None:
        return Verdict("exploratory", f"{arrived}. {said}", "Exploratory")
    if found.resolved:
        side = "fewer" if found.claimed.value < 0 else "more"
        text = f"{found.variant} needs significantly {side} {axis.label} than {base}"
        text = f"{text}: {numbers}." if found.late is None else f"{text}. {said}"
        return Verdict("resolved", f"{arrived}. {text}", "Significant")
    text = f"No significant difference in {axis.label}"
    text = f"{text}: the ratio is {numbers}." if found.late is None else f"{text}. {said}"
    text = f"{text}{why_withheld(analysis, found)}"
    return Verdict("open", f"{arrived}. {text}", "Not significant")


def _known(found: Difference, label: str, base: str, p: str) -> str:
    """Write a ratio over the pairs in which both arrive, and its bound over all pairs that count."""
    shown, late = found.shown, found.late
    ratio = f"{found.variant} takes {formatting.times(shown.value)} the {label} of {base}"
    if late is None:
        return f"{ratio} ({_numbers(found, p)})."
    interval = f"95 % interval {shown.low:.2f} to {shown.high:.2f}"
    parts = []
    if late.exact == 1:
        parts.append(f"In the one pair in which both arrive, {ratio}.")
    elif late.exact > 1:
        parts.append(f"Over the {late.exact} pairs in which both arrive, {ratio} ({interval}).")
    if late.bound is not None:
        bound = late.bound.map(math.exp)
        least = late.side == "low"
        end = f"from {bound.low:.2f}" if least else f"up to {bound.high:.2f}"
        end = "" if math.isnan(bound.low) else f" (95 % interval {end}{p})"
        parts.append(
            f"Over the {formatting.count(late.pairs, 'pair')} that count, the ratio is at "
            f"{'least' if least else 'most'} {formatting.times(bound.value)}{end}."
        )
    else:
        parts.append("Runs of both never arrive, so no direction is claimed.")
    if late.left_out:
        neither = formatting.count(late.left_out, "pair")
        parts.append(f"Left out: {neither} in which neither arrives.")
    if late.only_ours or late.only_theirs:
        parts.append(
            f"Only {found.variant} arrives in {late.only_ours} pairs, only {base} in {late.only_theirs} "
            f"(exact McNemar test, p {formatting.relation(late.p_arrival)})."
        )
    return " ".join(parts)


def _numbers(found: Difference, p: str) -> str:
    """Write interval, p-value and seeds of a ratio of runs that all arrive."""
    n = formatting.seeds(found.shown.n) if found.paired else "runs not paired"
    return f"95 % interval {found.shown.low:.2f} to {found.shown.high:.2f}{p}, {n}"


def why_withheld(analysis: Analysis, found: Difference) -> str:
    """Say that diverged runs forbid a claim; nothing where they do not."""
    if not found.excluded or found.resolved:
        return ""
    name = found.variant if found.direction == "better" else analysis.options.baseline
    other = analysis.options.baseline if found.direction == "better" else found.variant
    lost = len(analysis.diverged(name, found.scenario) - analysis.diverged(other, found.scenario))
    return (
        f" {found.variant} is not called {found.direction}: {name} diverged under "
        f"{formatting.seeds(lost)} under which {other} did not."
    )


def saves(analysis: Analysis, variant: str, scenario: str) -> bool:
    """Tell whether the verdict is that a variant needs significantly less of the cost to the target."""
    found = target_verdicts(analysis, variant, scenario)
    ratio = analysis.difference(variant, scenario, analysis.to_target)
    return ratio is not None and ratio.claimed.value < 0 and any(v.kind == "resolved" for v in found)


def ratio_cell(analysis: Analysis, variant: str, scenario: str, name: str) -> str:
    """Write a ratio of costs to the target for a table: a bound where runs of one side never arrived."""
    found = analysis.difference(variant, scenario, name)
    if found is None:
        return "-"
    late = found.late
    if late is None:
        return formatting.ratio(found.shown)
    if late.bound is None:
        pairs = f"in {late.exact} of {late.pairs} pairs"
        return f"about {formatting.ratio(found.shown)} {pairs}" if late.exact else "-"
    bound = late.bound.map(math.exp)
    low, high = (f"{bound.low:.2f}", "inf") if late.side == "low" else ("0", f"{bound.high:.2f}")
    ends = "" if math.isnan(bound.low) else f" [{low}, {high}]"
    return f"{'>=' if late.side == 'low' else '<='} {bound.value:.2f}{ends}"


def _after(found: Difference) -> str:
    return " after Holm correction" if found.comparisons > 1 else ""
