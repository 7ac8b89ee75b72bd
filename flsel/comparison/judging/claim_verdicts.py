"""Sentences about claims that were decided look by look, and about the procedure that decided them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flsel.comparison.judging import claim_formatting as words
from flsel.comparison.judging import formatting
from flsel.comparison.judging.claims import Claim
from flsel.comparison.judging.designs import ALPHA
from flsel.comparison.judging.power import corrected_estimate, fixed_seeds
from flsel.comparison.judging.summaries import Analysis, Options


def claim_text(claim: Claim, options: Options, where: str, scenarios: int) -> str:
    """Write what became of a claim.

    Args:
        claim: The claim.
        options: How the comparison is judged.
        where: The scenario behind a name, or nothing.
        scenarios: Number of scenarios of the comparison.
    """
    over = f", averaged over {scenarios} scenarios" if scenarios > 1 and not where else ""
    what = f"in {words.subject(claim.deciding)} ({words.measured(claim)}{over})"
    decision, base, most = claim.decision, options.baseline, claim.design.maximum
    if not decision.looks and decision.claim == "open":
        return (
            f"{claim.variant} and {base}{where} are not decided {what}: of "
            f"{formatting.count(decision.n, 'pair')}, {claim.left_out} say nothing, since neither run "
            "arrives."
        )
    if not decision.looks:
        n = decision.n
        return (
            f"{claim.variant} and {base}{where} are undecided {what}: {formatting.count(n, 'pair')} of runs "
            "of at least 6."
        )
    end = decision.looks[-1]
    arrived = words.arrivals(claim, end, base)
    at = f"decided at {end.n} of at most {most} seeds, look {len(decision.looks)}.{arrived}"
    if decision.claim in ("better", "worse"):
        return (
            f"{claim.variant} is {decision.claim} than {base}{where} {what}: {words.outer(claim, end)}, {at}"
            f"{_margin(claim)}{_estimate(claim)}"
        )
    if decision.claim == "equivalent":
        return (
            f"{claim.variant} and {base}{where} are equivalent within "
            f"{words.margin(claim.deciding, claim.design)} {what}: "
            f"{words.difference(claim.deciding, end.mean)}, 90 % interval "
            f"{words.ends(claim.deciding, end.inner_low, end.inner_high)} ({words.family(claim.design)}), "
            f"{at}{_estimate(claim)}"
        )
    if decision.given_up:
        return (
            f"{claim.variant} and {base}{where} are not decided {what}: {words.outer(claim, end)}. The claim "
            f"was given up at {end.n} of at most {most} seeds, where the chance to decide it was "
            f"{100 * end.hope:.0f} %.{arrived}"
        )
    state = "not decided" if decision.claim == "open" else "undecided yet"
    numbers = words.outer(claim, end)
    return (
        f"{claim.variant} and {base}{where} are {state} {what} with {end.n} seeds: {numbers}.{arrived}"
        f"{_withheld(claim, base)}"
    )


def _withheld(claim: Claim, baseline: str) -> str:
    """Say that diverged runs forbid a direction that the interval shows."""
    end = claim.decision.looks[-1]
    if end.low > 0 and claim.diverged.better:
        return f" {claim.variant} is not called better, as runs of it diverged."
    if end.high < 0 and claim.diverged.worse:
        return f" {claim.variant} is not called worse, as runs of {baseline} diverged."
    return ""


def _margin(claim: Claim) -> str:
    if claim.design.margin is None:
        return ""
    margin = words.margin(claim.deciding, claim.design)
    if claim.decision.beyond_margin:
        return f" The difference is larger than the margin of {margin}."
    if claim.decision.within_margin:
        return f" The difference is smaller than the margin of {margin}."
    return ""


def _estimate(claim: Claim) -> str:
    """Write the corrected estimate, and the fixed design that decides as much."""
    end = claim.decision.looks[-1]
    if claim.late:
        return ""  # a bound, of which no power is known
    corrected = corrected_estimate(claim.decision, claim.design)
    text = f" Corrected for the looks, the estimate is {words.difference(claim.deciding, corrected)}."
    if end.sd == 0:
        return text
    fixed = fixed_seeds(corrected, claim.design, end.sd)
    needed = "more than 1,000" if fixed is None else f"{fixed:,}"
    return f"{text} If that is the truth, a fixed design with 80 % power takes {needed} seeds."


def procedure_notes(analysis: Analysis) -> Iterator[str]:
    """Write how the claims were decided: what decided, how often was looked, what is guaranteed."""
    how = analysis.options.sequential
    if how is None:
        return
    design, deciding = how.design, how.deciding(analysis.options.last)
    looks = ", ".join(map(str, design.looks))
    margin = (
        "without a margin, so no equivalence is claimed"
        if design.margin is None
        else f"with a margin of {words.margin(deciding, design)}"
    )
    m = design.comparisons
    claims = "the claim is false" if m == 1 else f"any of the {m} claims is false"
    yield (
        f"Seeds were run {_how_long(analysis)}, {margin}: looks at {looks} seeds. The chance that "
        f"{claims}, at any look, is at most {100 * ALPHA:.0f} % for normally distributed "
        f"{'differences' if deciding.target is None else 'logarithms of the ratios'}."
    )
    if deciding.target is None:
        yield (
            "Test accuracy alone decides: costs to the target are exploratory here. To let a cost decide, "
            "declare it before the first run (--decides rounds)."
        )
    else:
        yield (
            f"Claims are about {words.subject(deciding)} alone: test accuracy and other costs are "
            "exploratory here. A claim is about the mean of the logarithms of the ratios. A run that never "
            "arrives bounds the ratio of its pair. Better is claimed over the upper ends only, worse over "
            "the lower ends only, and equivalent only if every run arrives."
        )
    runs = sum(run.status == "complete" for run in analysis.runs)
    most = design.maximum * len(how.variants) * len(how.scenarios)
    taken = max((len(claim.decision.looks) for claim in analysis.claims), default=0)
    yield f"{formatting.count(taken, 'look')} taken; {runs} of at most {most} runs."
    if how.rules.first_max_seeds is not None:
        yield (
            f"The maximum was raised once, from {how.rules.first_max_seeds} to {design.maximum} seeds. The 5 "
            "% include that."
        )
    if any(claim.decision.decided and claim.decision.n < design.maximum for claim in analysis.claims):
        yield (
            "Estimates of claims that were decided early are too large on average: by about a tenth at one "
            "standard deviation, by more within 8 seeds. The intervals allow for that."
        )
    yield from _skewed(analysis)
    for claim in analysis.claims:
        if claim.diverged.better or claim.diverged.worse:
            who = claim.variant if claim.diverged.better else analysis.options.baseline
            yield f"Runs of {who} diverged. No claim in its favour is made, and none of equivalence."


def _how_long(analysis: Analysis) -> str:
    """Say until when seeds were run: until every claim was decided only if so."""
    decided, claims = sum(claim.decision.decided for claim in analysis.claims), len(analysis.claims)
    if decided == claims:
        return "until every claim was decided"
    return f"as long as claims could be decided ({decided} of {claims} were)"


def _skewed(analysis: Analysis) -> Iterator[str]:
    from scipy import stats

    for claim in analysis.claims:
        values = claim.differences[: claim.decision.n]
        values = values[np.isfinite(values)]  # of pairs in which both arrive
        if len(values) < 6 or values.std() == 0:
            continue
        skew = float(stats.skew(values, bias=False))
        far = float(abs(values - values.mean()).max() / values.std(ddof=1))
        if abs(skew) > 1.5 or far > 4:
            won = int((values > 0).sum())
            yield (
                f"Differences of {claim.variant} are skewed (skewness {skew:+.1f}): the 5 % may be 8 %. It "
                f"is better in {won} of {len(values)} pairs."
            )
