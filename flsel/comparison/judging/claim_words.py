"""One claim in words: the same sentence for every design, in the terminal, the report and the page."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flsel.comparison.judging import formatting
from flsel.comparison.judging.claims import MEAN, Claim, mcnemar
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.designs import Design
from flsel.comparison.judging.estimates import mean_interval
from flsel.comparison.judging.power import corrected_estimate, fixed_seeds, seeds_needed
from flsel.runner.cost_axes import COST_AXES


def subject(deciding: Deciding) -> str:
    """Say what a claim is about: ``test accuracy``, ``rounds to 80 %``."""
    if deciding.target is None:
        return deciding.score.words
    return f"{COST_AXES[deciding.name].label} to {deciding.score.shown(deciding.target)}"


def difference(deciding: Deciding, value: float) -> str:
    """Write a difference in the unit of what decides: ``+1.2 points``, ``0.71 x``."""
    if deciding.target is None:
        return f"{formatting.gain(value, deciding.score)} {deciding.score.unit}".strip()
    return formatting.times(math.exp(-value))


def margin(deciding: Deciding, design: Design, n: int | None = None) -> str:
    """Write the margin of practical equivalence, of a look or the last: ``2 points``, ``1.1 x``."""
    width = (design.margin if n is None else design.margin_at(n)) or 0.0
    if deciding.target is not None:
        return f"{math.exp(width):.4g} x"
    return formatting.width(width) if deciding.score.is_share else f"{width:g}"


def family(design: Design) -> str:
    """Say for what the interval of a claim holds; nothing where it is the only one of one look."""
    over = [f"{design.comparisons} comparisons"] if design.comparisons > 1 else []
    over += [] if design.once else ["all looks"]
    return f" (corrected for {' and '.join(over)})" if over else ""


def label(claim: Claim) -> str:
    """Say in one or two words what became of a claim."""
    decision = claim.decision
    if _equal(claim):
        return "Equal"
    if claim.exploratory or (claim.design.once and claim.decision.n < claim.design.fewest):
        return "Not reached" if _says_nothing(claim) else "Exploratory"
    if claim.withheld:
        return "Withheld"
    if decision.given_up:
        return "Given up"
    if decision.claim == "open" and claim.design.once:
        return "Not reached" if _says_nothing(claim) else "Not significant"
    return {"open": "Not decided", "undecided": "Undecided"}.get(decision.claim, decision.claim.capitalize())


def sentence(claim: Claim, baseline: str, scenarios: int) -> str:
    """Write what became of a claim."""
    where = "" if claim.scenario == MEAN else formatting.where(claim.scenario)
    over = f", averaged over {scenarios} scenarios" if claim.scenario == MEAN else ""
    mean = _measured(claim.deciding)
    about = f" ({mean}{over})" if mean or over else ""
    what = f"in {subject(claim.deciding)}{about.replace('(, ', '(')}"
    if claim.kind != "mean":
        written = _counted(claim, baseline, where)
    elif _says_nothing(claim):
        written = _without_arrivals(claim, baseline, where, what)
    else:
        written = (_judged if claim.decision.looks else _without_look)(claim, baseline, where, what)
    return written + (f" Exploratory: {'; '.join(claim.exploratory)}." if claim.exploratory else "")


def _judged(claim: Claim, baseline: str, where: str, what: str) -> str:
    """Write a claim that a look judged."""
    decision, end, v = claim.decision, claim.decision.looks[-1], claim.variant
    once, late = claim.design.once, " ".join(_late(claim, baseline))
    how = "decided at" if decision.decided else "after"
    at = (
        "" if once else f", {how} {end.n} of at most {claim.design.maximum} seeds, look {len(decision.looks)}"
    )
    if _equal(claim):
        return f"{v} equals {baseline}{where} {what} under each of {formatting.seeds(end.n)}."
    numbers, tail = numbers_of(claim), f"{at}.{' ' if late else ''}{late}"
    differs = f"{v} differs from {baseline}{where} {what}{':' if claim.late else ' by'} "
    if once and (claim.exploratory or end.n < claim.design.fewest):
        few = f" A claim needs at least {claim.design.fewest} seeds." if end.n < claim.design.fewest else ""
        return f"{differs}{numbers}{tail}{_wide(claim) or few}"
    if decision.claim in ("better", "worse"):
        sure = "significantly " if once else ""
        return (
            f"{v} is {sure}{decision.claim} than {baseline}{where} {what}: {numbers}{tail}"
            f"{_beside_margin(claim)}{_tests_differ(claim)}{_estimate(claim)}"
        )
    if decision.claim == "equivalent":
        return (
            f"{v} and {baseline}{where} are equivalent within {margin(claim.deciding, claim.design, end.n)} "
            f"{what}: {numbers}{tail}{_estimate(claim)}"
        )
    if decision.given_up:
        return (
            f"{v} and {baseline}{where} are not decided {what}: {numbers}. The claim was given up at {end.n} "
            f"of at most {claim.design.maximum} seeds, where the chance to decide it was "
            f"{formatting.share(end.hope)}.{' ' if late else ''}{late}"
        )
    if claim.withheld:
        return f"{differs}{numbers}{tail}{_withheld(claim, baseline)}"
    if not once:
        state = "not decided" if decision.claim == "open" else "undecided yet"
        return (
            f"{v} and {baseline}{where} are {state} {what} with {end.n} seeds: {numbers}."
            f"{' ' if late else ''}{late}"
        )
    return (
        f"No significant difference {what} between {v} and {baseline}{where}: {numbers}{tail}"
        f"{_tests_differ(claim)}{_seeds_needed(claim)}"
    )


def _measured(deciding: Deciding) -> str:
    """Say how the measure is taken: the evaluations in it."""
    last = "the last " if deciding.target is None else ""
    return f"mean of {last}{deciding.last} evaluations" if deciding.last > 1 else ""


def _equal(claim: Claim) -> bool:
    """Tell whether every pair of one look is equal, and no margin makes that a claim."""
    n = claim.looked if claim.paired and claim.kind == "mean" and claim.decision.looks else 0
    return n > 1 and not claim.decision.decided and not claim.lower[:n].any()


def _says_nothing(claim: Claim) -> bool:
    """Tell whether there are pairs, and nothing is known of any."""
    ended = not claim.design.once and claim.decision.claim == "open"
    return claim.kind == "mean" and claim.paired and not claim.seeds and (claim.left_out > 0 or ended)


def _without_arrivals(claim: Claim, baseline: str, where: str, what: str) -> str:
    target = claim.deciding.score.shown(claim.deciding.target or 0.0)
    mean = _measured(claim.deciding)
    if claim.design.once:
        goal = f"{target}{f' ({mean})' if mean else ''}{where}"
        return f"Neither {claim.variant} nor {baseline} reaches {goal} in any pair."
    silent, lost = claim.left_out, claim.diverged.equivalent
    causes = {
        "neither run arrives": silent,
        "a run diverged": lost,
        "the runs form no pair": claim.decision.n - silent - lost,
    }
    why = [f"{cause} in {count}" for cause, count in causes.items() if count]
    return (
        f"{claim.variant} and {baseline}{where} are not decided {what}: of "
        f"{formatting.seeds(claim.decision.n)}, {' and '.join(why)}."
    )


def _without_look(claim: Claim, baseline: str, where: str, what: str) -> str:
    n = len(claim.seeds)
    if not claim.design.once:
        return (
            f"{claim.variant} and {baseline}{where} are undecided {what}: {formatting.count(n, 'pair')} of "
            f"runs of at least {claim.design.fewest}."
        )
    if claim.unpaired is None:
        low, high = claim.lower[0], claim.upper[0]
    else:
        low = high = float(claim.unpaired[0].mean() - claim.unpaired[1].mean())
    late = " ".join(_late(claim, baseline))
    bounded = "" if low == high else "at most " if math.isfinite(low) else "at least "
    size = bounded + difference(claim.deciding, low if math.isfinite(low) else high)
    return (
        f"{claim.variant} differs from {baseline}{where} {what} by {size} with one seed. {late}"
        f"{' ' if late else ''}One seed shows no spread, so nothing can be said about chance."
    )


def _counted(claim: Claim, baseline: str, where: str) -> str:
    """Write which side arrives, or diverges, more often."""
    ours, theirs = claim.alone()
    goal = claim.deciding.score.shown(claim.deciding.target or 0.0)
    do, does, alone = (
        (f"reach {goal}", f"reaches {goal}", "arrives")
        if claim.kind == "arrival"
        else ("diverge", "diverges", "diverges")
    )
    numbers = (
        f"only {claim.variant} {alone} in {formatting.count(ours, 'pair')}, only {baseline} in {theirs} "
        f"(exact McNemar test, p {formatting.relation(claim.p_holm)}{_holm(claim)})"
    )
    if claim.decision.decided:
        more = f"{'significantly ' if claim.design.once else ''}{'more' if ours > theirs else 'less'} often"
        return f"{claim.variant} {does}{where} {more} than {baseline}: {numbers}."
    return (
        f"{claim.variant} and {baseline} do not differ significantly in how often they {do}{where}: "
        f"{numbers}."
    )


def numbers_of(claim: Claim) -> str:
    """Write the estimate of the last look with the interval that decides, and the p-values of one look."""
    end, design, deciding = claim.decision.looks[-1], claim.design, claim.deciding
    level = f"{100 * (1 - design.alpha):g} % interval"
    low, high = end.low, end.high
    if claim.decision.claim == "equivalent" and not (design.once and claim.exploratory):
        level, low, high = f"{100 * (1 - 2 * design.alpha):g} % interval", end.inner_low, end.inner_high
    parts = []
    if claim.late and (math.isfinite(end.least) or math.isfinite(end.most)):
        bound, which = (end.least, "most") if math.isfinite(end.least) else (end.most, "least")
        first, last = interval_ends(deciding, low, high)
        reach = last if last.startswith("below") else f"up to {last}"
        if which == "least":
            reach = first if first.startswith("above") else f"from {first}"
        pairs = formatting.count(end.n, "pair")
        parts.append(f"over the {pairs} that count, the ratio is at {which} {difference(deciding, bound)}")
        parts.append(f"{level} {reach}{family(design)}")
    elif claim.late:
        parts.append("no bound of the ratio is known")
    else:
        if not math.isnan(end.mean):
            parts.append(difference(deciding, end.mean))
        if claim.same(end.n):
            parts.append(f"the same in {'each pair' if claim.paired else 'all runs of a side'}")
        elif math.isfinite(low) or math.isfinite(high):  # nothing is known where too few pairs say something
            parts.append(f"{level} {' to '.join(interval_ends(deciding, low, high))}{family(design)}")
    if design.once:
        if claim.tested:
            parts.append(f"p {formatting.relation(claim.p_holm)}{_holm(claim)}")
            if not math.isnan(claim.p_exact_holm):
                parts.append(f"sign-flip p {formatting.relation(claim.p_exact_holm)}")
        # They are the seeds in common where one side has more runs.
        more = claim.most > end.n + claim.left_out
        over = f"over the {end.n} common seeds" if more else formatting.seeds(end.n)
        parts.append(over if claim.paired else "runs not paired")
    return ", ".join(parts)


def _holm(claim: Claim) -> str:
    if claim.design.once:
        return " (Holm)" if claim.design.comparisons > 1 else ""
    return ", corrected for all claims and looks"


def interval_ends(deciding: Deciding, low: float, high: float) -> list[str]:
    """Write the ends of an interval: points within what is possible, or ratios."""
    if deciding.target is not None:
        return formatting.ends(math.exp(-high), math.exp(-low), 1, formatting.three, formatting.WORDS)
    gains, widest = deciding.score.gains, deciding.widest
    first, last = sorted(max(-widest, min(end, widest)) / gains for end in (low, high))

    def write(x: float) -> str:
        return formatting.gain(gains * x, deciding.score)

    return formatting.ends(first, last, 0, write, formatting.WORDS)


def _late(claim: Claim, baseline: str) -> Iterator[str]:
    """Say how many runs arrived, and what that leaves of the ratio; nothing of a score."""
    if claim.deciding.target is None:
        return
    n = claim.looked
    runs = n * claim.runs
    ours, theirs = claim.arrived(n)
    if ours == theirs == runs:
        whole = not claim.left_out and not claim.diverged.equivalent
        yield "Every run arrives." if whole else "Every run of these pairs arrives."
    else:
        yield f"{claim.variant} arrives in {ours} of {runs} runs, {baseline} in {theirs}."
        exact = [end for end, top in zip(claim.lower[:n], claim.upper[:n], strict=True) if end == top]
        if exact:
            found = mean_interval(exact, 1 - claim.design.alpha)
            ratio = difference(claim.deciding, found.value)
            level = f"single {100 * (1 - claim.design.alpha):g} % interval"
            inside = " to ".join(interval_ends(claim.deciding, found.low, found.high))
            ends = ", the same in each" if math.isnan(found.low) else f" ({level} {inside})"
            who = f"Over the {len(exact)} pairs" if len(exact) > 1 else "In the one pair"
            axis = COST_AXES[claim.deciding.name].label
            yield (
                f"{who} in which both arrive, {claim.variant} takes {ratio} the {axis} of {baseline}"
                f"{ends if len(exact) > 1 else ''}."
            )
        if ours < runs and theirs < runs:
            yield "As runs of both never arrive, no direction is claimed."
        else:
            yield f"So the ratio has no {'upper' if ours < runs else 'lower'} bound."
        mine, yours = claim.alone(n)
        yield (
            f"Only {claim.variant} arrives in {formatting.count(mine, 'pair')}, only {baseline} in {yours} "
            f"(exact McNemar test, single p {formatting.relation(mcnemar(mine, yours))})."
        )
    if claim.left_out:
        yield f"Left out: {formatting.count(claim.left_out, 'pair')} in which neither arrives."
        if claim.too_silent(None if claim.design.once else n):
            yield "These are more than a third of all pairs, so no direction is claimed."


def _withheld(claim: Claim, baseline: str) -> str:
    """Say why diverged runs forbid a direction."""
    name, lost = claim.withheld, claim.diverged
    who, count = (claim.variant, lost.better) if name == "better" else (baseline, lost.worse)
    other = baseline if name == "better" else claim.variant
    text = (
        f" {claim.variant} is not called {name}: {who} diverged under {formatting.seeds(count)} under which "
        f"{other} did not."
    )
    if claim.design.once and 2.0 ** (1 - lost.better - lost.worse) > (
        claim.design.alpha / claim.design.comparisons
    ):
        p = formatting.relation(mcnemar(lost.better, lost.worse))
        text += f" So few pairs cannot show which of the two diverges more often (exact McNemar test, p {p})."
    return text


def _beside_margin(claim: Claim) -> str:
    n = claim.decision.looks[-1].n
    if claim.design.margin_at(n) is None:
        return ""
    width = margin(claim.deciding, claim.design, n)
    if claim.decision.beyond_margin:
        return f" The difference is larger than the margin of {width}."
    if claim.decision.within_margin:
        return f" The difference is smaller than the margin of {width}."
    return ""


def _tests_differ(claim: Claim) -> str:
    """Say where the exact test does not agree with the interval."""
    level, exact = claim.design.alpha, claim.p_exact_holm
    if not claim.design.once:
        exact, level = claim.p_exact, level / claim.design.comparisons
    if math.isnan(exact) or claim.decision.decided == (exact <= level):
        return ""
    n = claim.decision.looks[-1].n
    if claim.decision.decided and 2.0 ** (1 - n) > claim.design.alpha / claim.design.comparisons:
        return f" The exact sign-flip test cannot reject with {formatting.seeds(n)}."
    return f" The exact sign-flip test disagrees (p {formatting.relation(exact)})."


def _estimate(claim: Claim) -> str:
    """Write the corrected estimate of several looks, and the fixed design that decides as much."""
    end = claim.decision.looks[-1]
    if claim.late or claim.design.once or claim.same(end.n):
        return ""  # a bound, of which no power is known; or no look or spread that could bias it
    corrected = corrected_estimate(claim.decision, claim.design)
    text = f" Corrected for the looks, the estimate is {difference(claim.deciding, corrected)}."
    fixed = fixed_seeds(corrected, claim.design, end.sd)
    needed = "more than 1,000" if fixed is None else f"{fixed:,}"
    return f"{text} If that is the truth, a fixed design with 80 % power takes {needed} seeds."


def _seeds_needed(claim: Claim) -> str:
    """Say how many seeds would give 80 % power, and how uncertain that number is."""
    if claim.late or not claim.paired:
        return ""
    needed = seeds_needed(claim.lower, claim.design.comparisons, claim.design.alpha)
    if needed is None or (needed.value is not None and needed.value <= len(claim.seeds)):
        return ""
    if claim.same(claim.n):
        return f" If it stays the same in each pair, {needed.value} seeds decide."
    shown = [
        f"{n:,}" if n is not None else "more than 1,000" for n in (needed.value, needed.low, needed.high)
    ]
    about = "" if needed.value is None else "about "
    return (
        f" A difference of this size takes {about}{shown[0]} seeds for 80 % power (95 % interval {shown[1]} "
        f"to {shown[2]})."
    )


def _wide(claim: Claim) -> str:
    """Say it where the interval is wider than anything that could be measured."""
    end = claim.decision.looks[-1]
    if math.isinf(claim.deciding.widest) or max(abs(end.low), abs(end.high)) < claim.deciding.widest:
        return ""
    return f" {formatting.seeds(end.n).capitalize()} say nothing about the size of this difference."


def outcome(claim: Claim) -> str:
    """Write what became of a claim for a table: ``better at 8``, ``better (p 0.004)``."""
    if not claim.design.once:
        return f"{label(claim).lower()} at {claim.decision.n}"
    p = f" (p {formatting.p_value(claim.p_holm)})" if claim.tested else ""
    return f"{label(claim).lower()}{p}"
