"""How claims are decided, in words: the rules, their guarantee and its condition, and what data say of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scipy import stats

from flsel.comparison.judging import formatting
from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.judging.claim_words import margin, subject
from flsel.comparison.judging.claims import MEAN, Claim
from flsel.comparison.judging.designs import FEWEST_SEEDS, Design
from flsel.comparison.judging.estimates import flat
from flsel.comparison.judging.power import resolvable, seeds_to_reject

CONDITION = "if differences are about normally distributed, or symmetric"
"""When the guarantee holds."""
_HOPELESS = 50.0  # Of a larger difference in points that is needed the size says nothing.


def guarantee(design: Design) -> str:
    """Write the chance of a false claim of a family, with its condition."""
    m = design.comparisons
    claims = "the claim is false" if m == 1 else f"any of the {m} claims is false"
    looks = "" if design.once else ", at any look,"
    return f"The chance that {claims}{looks} is at most {100 * design.alpha:g} % {CONDITION}."


def nothing_compared(analysis: Analysis) -> str:
    """Say why no scores are compared; nothing where some are."""
    if any(pairs.ours for pairs in analysis.pairs.values()):
        return ""
    base = analysis.options.baseline
    if len(analysis.variants) < 2:
        why = f"there is one variant, {analysis.variants[0]}"
    elif any(pairs.problems for pairs in analysis.pairs.values()):
        why = f"no run of a variant forms a pair with one of {base}"
    else:
        why = f"no variant shares a finished seed with {base}"
    return f"No scores are compared: {why}."


def procedure_notes(analysis: Analysis) -> Iterator[str]:
    """Write how the claims were decided, what is guaranteed, and what it depends on."""
    if nothing := nothing_compared(analysis):
        yield nothing
        yield from (guarantee(claim.design) for claim in analysis.claims[:1])
        yield from _about_diverged(analysis)
        return
    several = analysis.options.until_decided
    yield from _about_looks(analysis) if several else _about_one_look(analysis)
    made = [claim for claim in analysis.claims if claim.decision.decided and claim.kind == "mean"]
    if made:
        n, level = min(claim.looked for claim in made), analysis.options.level
        yield (
            f"{formatting.seeds(n).capitalize()} without a collapse do not exclude that runs collapse in up "
            f"to {100 * (1 - (1 - level) ** (1 / n)):.0f} % of seeds. If runs of one variant only "
            "collapse, false claims are more frequent."
        )
    yield from _skewed(analysis)
    yield from _about_diverged(analysis)


def _about_diverged(analysis: Analysis) -> Iterator[str]:
    """Say which claims diverged runs forbid."""
    base, found = analysis.options.baseline, dict[str, None]()
    for claim in (c for c in analysis.claims if c.kind == "mean" and c.diverged.equivalent):
        lost, where = claim.diverged, "" if claim.scenario == MEAN else formatting.where(claim.scenario)
        sides = [name for name, count in ((claim.variant, lost.better), (base, lost.worse)) if count]
        who, pair = (
            " and ".join(sides or (claim.variant, base)),
            f"of equivalence of {claim.variant} and {base}",
        )
        forbid = {
            0: "no claim",
            1: f"no claim in favour of {who}, and none",
            2: "no claim of a direction, and none",
        }
        found[f"Runs of {who} diverged{where}: {forbid[len(sides)]} {pair} is made."] = None
    yield from found


def _about_one_look(analysis: Analysis) -> Iterator[str]:
    """Write what a fixed number of seeds can show."""
    main = [c for c in analysis.claims if c.measure == analysis.main and c.kind == "mean"]
    seen = [change.before for change in analysis.options.changes if change.what == "seeds"]
    if seen:
        times = {1: "once", 2: "twice"}.get(len(seen), f"{len(seen)} times")
        yield (
            f"Seeds were added {times} after results were seen (at {', '.join(map(str, seen))} seeds): the "
            "error rate is not controlled. Looking at 3, 5, 8 and 12 seeds makes a false claim in 11 % of "
            "comparisons instead of 5 %. Use --until-decided, which corrects for the looks."
        )
    several = [claim for claim in main if claim.decision.looks]
    if not several:
        yield "One seed shows no spread. Numbers have no intervals, and no claim is made."
        return
    fewest, family = min(claim.looked for claim in several), several[0].design.comparisons
    alpha = several[0].design.alpha
    if min(claim.looked for claim in main) < FEWEST_SEEDS:
        yield (
            f"No claim is made from fewer than {FEWEST_SEEDS} seeds: with fewer, an interval holds for "
            "normally distributed differences only, which so few cannot show."
        )
    carry = [claim for claim in several if claim.looked >= FEWEST_SEEDS]
    if any(not claim.exploratory for claim in carry):
        yield guarantee(several[0].design)
    needed = seeds_to_reject(family, alpha)
    if fewest < needed and all(claim.paired for claim in main):
        yield (
            f"The exact sign-flip test cannot reject at {100 * alpha:g} % with {formatting.seeds(fewest)}"
            f"{_corrected_for(family)}, whatever the runs show. It takes {needed} seeds."
            + ("" if all(claim.same(claim.n) for claim in carry) else " Claims rest on t intervals.")
        )
    yield from _about_power(several, family, alpha)
    if any(map(_may_be_too_large, several)):
        yield (
            "Estimates of significant differences are too large on average, above all with few seeds. The "
            "intervals beside the verdicts hold for all claims together. differences.csv also has the "
            "interval of each claim alone."
        )


def _about_power(several: Sequence[Claim], family: int, alpha: float) -> Iterator[str]:
    found = [
        (resolvable(claim.lower, family, alpha), claim.variant, claim.looked)
        for claim in several
        if claim.paired and claim.looked >= FEWEST_SEEDS
    ]
    shift, variant, n = max(found, default=(0.0, "", 0))
    score = several[0].deciding.score
    size = f"{shift:.1f} points of accuracy" if score.is_share else f"{shift:.3g} in {score.words}"
    if score.is_share and shift >= _HOPELESS:
        yield (
            f"Differences of {variant} vary so much that {formatting.seeds(n)} give 80 % power only for more "
            f"than {_HOPELESS:.0f} points of accuracy{_corrected_for(family)}."
        )
    elif shift > 0:
        whose = f" (of {variant}, which varies most)" if len({name for _, name, _ in found}) > 1 else ""
        yield (
            f"{formatting.seeds(n)} give 80 % power for a difference of {size}{whose}"
            f"{_corrected_for(family)}. Smaller differences may not be found."
        )


def _corrected_for(family: int) -> str:
    return f", corrected for {family} comparisons" if family > 1 else ""


def _about_looks(analysis: Analysis) -> Iterator[str]:
    """Write how often was looked, and what decided."""
    how = analysis.options
    design, deciding = how.claim_design, how.decides_about
    looks = ", ".join(map(str, design.looks))
    width = (
        "without a margin, so no equivalence is claimed"
        if design.margin is None
        else f"with a margin of {margin(deciding, design)}"
    )
    said = "" if all(claim.exploratory for claim in analysis.claims) else f" {guarantee(design)}"
    yield f"Seeds were run {_how_long(analysis)}, {width}: looks at {looks} seeds.{said}"
    if deciding.target is None:
        words = deciding.score.words
        yield (
            f"{words[0].upper()}{words[1:]} alone decides: costs to the target are exploratory here. "
            "To let a cost decide, declare it before the first run (--decides rounds)."
        )
    else:
        yield (
            f"Claims are about {subject(deciding)} alone: {deciding.score.words} and other costs are "
            "exploratory here. A claim is about the mean of the logarithms of the ratios. A run that never "
            "arrives bounds the ratio of its pair. Better is claimed over the upper ends only, worse over "
            "the lower ends only, and equivalent only if every run arrives."
        )
    runs = sum(run.status in ("complete", "diverged") for run in analysis.runs)
    most = design.maximum * len(how.variants) * len(how.scenarios)
    taken = max((len(claim.decision.looks) for claim in analysis.claims), default=0)
    yield f"{formatting.count(taken, 'look')} taken; {runs} of at most {most} runs."
    if how.first_max_seeds is not None:
        yield (
            f"The maximum was raised once, from {how.first_max_seeds} to {design.maximum} seeds. The "
            f"{100 * design.alpha:g} % include that."
        )
    if any(_may_be_too_large(claim) and claim.looked < design.maximum for claim in analysis.claims):
        yield (
            "Estimates of claims that were decided early are too large on average: by about a tenth at one "
            "standard deviation, by more within 8 seeds. The intervals allow for that."
        )


def _may_be_too_large(claim: Claim) -> bool:
    """Tell whether it claims a direction of differences that vary: large ones are claimed more often."""
    direction = claim.made and claim.decision.claim != "equivalent"
    return direction and claim.kind == "mean" and not claim.same(claim.looked)


def _how_long(analysis: Analysis) -> str:
    """Say until when seeds were run: until every claim was decided only if so."""
    decided = [claim.decision.decided for claim in analysis.claims if claim.kind == "mean"]
    if all(decided):
        return "until every claim was decided"
    return f"as long as claims could be decided ({sum(decided)} of {len(decided)} were)"


def _skewed(analysis: Analysis) -> Iterator[str]:
    """Say where differences are so skewed, or one is so far off, that claims err more often than they say."""
    for claim in analysis.claims:
        values, ends = claim.lower[: claim.decision.n], claim.upper[: claim.decision.n]
        values = values[values == ends]  # of pairs in which both arrive
        if len(values) < FEWEST_SEEDS or flat(values) or claim.kind != "mean":
            continue
        skew = float(stats.skew(values, bias=False))
        far = float(abs(values - values.mean()).max() / values.std(ddof=1))
        if not math.isnan(skew) and (abs(skew) > 1.5 or far > 4):
            won, alpha = int((values > 0).sum()), claim.design.alpha
            pairs = f"{len(values)} pairs{' in which both arrive' if claim.late else ''}"
            where = "" if claim.scenario == MEAN else formatting.where(claim.scenario)
            exact = (
                ""
                if claim.late or math.isnan(claim.p_exact)
                else (f", and the exact sign-flip test has p {formatting.relation(claim.p_exact)}")
            )
            yield (
                f"Differences of {claim.variant}{where} in {subject(claim.deciding)} are skewed (skewness "
                f"{skew:+.1f}), so that more than {100 * alpha:g} % of such claims may be false. It is "
                f"better in {won} of {pairs}{exact}."
            )
