"""Verdicts by rule: one sentence a claim, in the words of a statistics section."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from flsel.comparison.judging import formatting
from flsel.comparison.judging.claim_formatting import subject
from flsel.comparison.judging.claim_verdicts import claim_text
from flsel.comparison.judging.claims import MEAN
from flsel.comparison.judging.estimates import FEWEST_SEEDS
from flsel.comparison.judging.summaries import Analysis, Difference
from flsel.comparison.judging.target_verdicts import target_verdicts, time_verdicts, why_withheld
from flsel.comparison.judging.verdict import Verdict

MOST_OPEN = 8  # More claims without a result than a reader goes through before the table.


def verdicts(analysis: Analysis) -> list[Verdict]:
    """Return the claims: for every variant in every scenario its accuracy and its cost to the target.

    Over several scenarios their ranking comes first, and what is resolved before what is open.
    """
    found: list[Verdict] = []
    for scenario in analysis.scenarios:
        for variant in analysis.variants:
            if variant != analysis.options.baseline:
                # What decides has its claims.
                if analysis.options.sequential is None or analysis.deciding != analysis.main:
                    found += _measured(analysis, variant, scenario, analysis.main)
                if analysis.deciding != analysis.to_target:
                    found += target_verdicts(analysis, variant, scenario)
                found += time_verdicts(analysis, variant, scenario)
                for name in analysis.own:
                    found += _measured(analysis, variant, scenario, name)
    if len(analysis.scenarios) > 1:
        found.sort(key=lambda verdict: verdict.kind != "resolved")
    return [*_decided(analysis), *_ranks(analysis), *found]


def folded(analysis: Analysis) -> tuple[list[Verdict], list[Verdict]]:
    """Split the claims into those to show and those to fold away: the open ones, where there are too many."""
    found = verdicts(analysis)
    first = len(analysis.claims) + int(analysis.ranking is not None)
    shown = [v for at, v in enumerate(found) if at < first or v.kind == "resolved"]
    if len(found) - len(shown) <= MOST_OPEN:
        return found, []
    return shown, [v for v in found if v not in shown]


def _decided(analysis: Analysis) -> Iterator[Verdict]:
    for claim in analysis.claims:
        where = "" if claim.scenario == MEAN else formatting.where(claim.scenario)
        text = claim_text(claim, analysis.options, where, len(analysis.scenarios))
        label = {"open": "Not decided", "undecided": "Undecided"}.get(
            claim.decision.claim, claim.decision.claim.capitalize()
        )
        yield Verdict("resolved" if claim.decision.decided else "open", text, label)


def _what(analysis: Analysis, name: str) -> str:
    last = analysis.options.last
    mean = f" (mean of the last {last} evaluations)" if last > 1 else ""
    return f"in test {name.partition('/')[0]}{mean}"


def _measured(analysis: Analysis, variant: str, scenario: str, name: str) -> Iterator[Verdict]:
    """Judge what is measured at the end of a run: test accuracy, or one of the run's own metrics."""
    found = analysis.difference(variant, scenario, name)
    if found is None:
        return
    base, where, what = analysis.options.baseline, formatting.where(scenario), _what(analysis, name)
    size, n = _size(found)(found.shown.value), found.found.difference.n
    how = analysis.options.sequential
    if n < 2:
        text = f"{variant} differs from {base}{where} {what} by {size} with one seed. "
        yield Verdict(
            "exploratory",
            text + "One seed shows no spread, so nothing can be said about chance.",
            "Exploratory",
        )
    elif found.equal and not found.shown.value:
        text = f"{variant} equals {base}{where} {what} under each of {formatting.seeds(n)}."
        yield Verdict("open", text, "Equal")
    elif n < FEWEST_SEEDS or how is not None:
        text = f"{variant} differs from {base}{where} {what} by {_numbers(found, p=False)}."
        rule = f" A claim needs at least {FEWEST_SEEDS} seeds."
        if how is not None:
            rule = f" The claims are about {subject(how.deciding(analysis.options.last))}."
        text += _says_nothing(analysis, found) or rule
        yield Verdict("exploratory", text, "Exploratory")
    elif found.resolved:
        side = _side(analysis, found)
        than = "from" if side == "different" else "than"
        numbers = f"{_holm(found)} ({_numbers(found)})"
        text = f"{variant} is significantly {side} {than} {base}{where} {what}{numbers}."
        yield Verdict("resolved", text, side.capitalize())
    else:
        text = f"No significant difference {what} between {variant} and {base}{where}{_holm(found)} "
        more = why_withheld(analysis, found) or _seeds_needed(found)
        yield Verdict("open", f"{text}({_numbers(found)}).{more}", "Not significant")


def _side(analysis: Analysis, found: Difference) -> str:
    better = analysis.measures[found.measure].better
    if better is None:
        return "different"
    return "better" if (found.shown.value > 0) == (better == "max") else "worse"


def _size(found: Difference) -> Callable[[float], str]:
    """Return what writes a difference: in points of accuracy, or as a number."""
    if found.measure.startswith("accuracy/"):
        return lambda value: f"{formatting.points(value)} points"
    return lambda value: f"{value:+.3g}"


def _holm(found: Difference) -> str:
    return " after Holm correction" if found.comparisons > 1 else ""


def _numbers(found: Difference, *, p: bool = True) -> str:
    """Write estimate, interval, corrected interval of a significant difference, p and seeds."""
    size = _size(found)

    def end(value: float) -> str:
        return size(value).removesuffix(" points")

    parts = [size(found.shown.value), f"95 % interval {end(found.shown.low)} to {end(found.shown.high)}"]
    wide = found.shown_corrected
    if found.resolved and wide is not None and found.comparisons > 1:
        ends = f"{end(wide.low)} to {end(wide.high)}"
        parts.append(f"{ends} corrected for {found.comparisons} comparisons")
    if p:
        parts.append(f"p {formatting.relation(found.p_holm)}")
    parts.append(formatting.seeds(found.shown.n) if found.paired else "runs not paired")
    return ", ".join(parts)


def _says_nothing(analysis: Analysis, found: Difference) -> str:
    """Say it where the interval is wider than anything that could be measured."""
    if analysis.measures[found.measure].unit != "%" or max(abs(found.shown.low), abs(found.shown.high)) < 1:
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
    about = "" if needed.value is None else "about "
    return (
        f" A difference of this size takes {about}{shown[0]} seeds for 80 % power (95 % interval {shown[1]} "
        f"to {shown[2]})."
    )


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
            f"{best} has the best mean rank over {ranking.scenarios} scenarios ({numbers}). So few scenarios "
            "and variants cannot decide a ranking."
        )
        yield Verdict("exploratory", text, "Exploratory")
    elif sure:
        yield Verdict(
            "resolved", f"{best} has the significantly best mean rank over {ranking.scenarios} "
            f"scenarios ({numbers}).",
            "Best",
        )  # fmt: skip
    else:
        text = (
            f"No significant difference in mean rank between {best} and {next_best} over {ranking.scenarios} "
        )
        yield Verdict("open", f"{text}scenarios ({numbers}).", "Not significant")
