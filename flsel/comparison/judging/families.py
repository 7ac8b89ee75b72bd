"""The claims of a comparison: look by look until decided, or by one look as a family with Holm's steps.

A claim of one look that is decided leaves its share of the level to the others. So the others are judged
again, with fewer comparisons (Holm 1979). The interval shown beside a decided claim holds for the whole
family, cut where the decision says more. That beside an open claim has the level of the last step. Together
they cover all true differences with the level of the family (Guilbaud 2008), and none contradicts its
decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from flsel.comparison.judging.claims import Claim, Evidence, Sample, Who
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.decisions import Decision
from flsel.comparison.judging.designs import ALPHA, GIVE_UP_FROM, Design, spent
from flsel.comparison.judging.estimates import holm, sign_flip


def claims(sample: Sample) -> tuple[Claim, ...]:
    """Decide every claim look by look, as far as the runs go."""
    options = sample.options
    places = [(s,) for s in options.scenarios] if options.each_scenario else [options.scenarios]
    whos = [(v, place) for place in places for v in options.variants if v != options.baseline]
    return tuple(claim for who in whos for claim in _look_by_look(sample, who))


def level_of_counts(design: Design, n: int) -> float:
    """Return the level to test arrival or divergence at: what the look at n pairs, or the first, spends."""
    first, looks = design.first_maximum or design.maximum, [look for look in design.looks if look <= n]
    before = spent(looks[-2], first) if len(looks) > 1 else 0.0
    share = spent(looks[-1] if looks else design.looks[0], first) - before
    return share * design.alpha / design.comparisons


def _look_by_look(sample: Sample, who: Who) -> Iterator[Claim]:
    """Yield the claim about a mean, and one about arrival or divergence where it is decided.

    Which side arrives more often is tested once a direction of the cost is decided. Where the cost truly
    differs, only this test can err. Which side diverges more often is tested once the claim has ended: a run
    that diverged withholds a direction, which leaves that side's level to this test. Both are tested once, at
    the level that the last look spends.
    """
    design = sample.options.claim_design
    known = sample.evidence(who, sample.options.decides_about)
    decision, ended = known.decide(design), sample.counts(who, known.deciding, "divergence")
    total = max(len(ended.seeds), len(known.seeds) + known.left_out)
    if decision.claim == "undecided" and total >= (design.maximum if known.seeds else GIVE_UP_FROM):
        # Pairs in which neither arrives, or one diverged, take the other seeds.
        decision = replace(decision, claim="open", n=total, given_up=not known.seeds)
    n = decision.looks[-1].n if decision.looks else 0
    exact = bool(n) and np.array_equal(known.lower[:n], known.upper[:n])
    made = Claim(**vars(known), decision=decision, design=design)
    yield replace(made, p_exact=sign_flip(known.lower[:n])) if exact else made
    if decision.claim == "undecided":
        return
    arrives = known.deciding.target is not None and decision.claim in ("better", "worse")
    more = sample.counts(who, known.deciding, "arrival") if arrives else ended
    level = level_of_counts(design, n)
    found = more.decide_counts(level)
    if found.decided or (more is ended and any(more.alone())):
        p = min(1.0, more.p()[0] * design.alpha / level)
        yield Claim(**vars(more), decision=found, design=design, p_holm=p)


def fixed_claims(sample: Sample, measures: Sequence[Deciding]) -> tuple[Claim, ...]:
    """Decide the claims of a fixed number of seeds: one family over variants, scenarios and measures.

    Which side arrives, or diverges, more often is a claim of the family if there are so many pairs in which
    only one of the two does that the exact test could reject (Tarone 1990).
    """
    runs, options = sample.runs, sample.options
    there = {(run.variant, run.scenario) for run in runs if run.variant != options.baseline}
    comparisons = others = len(measures) * max(len(there), options.declared_cells)
    means, more = list[Evidence](), list[Evidence]()
    scenarios = dict.fromkeys(run.scenario for run in runs)
    for variant, place in ((v, s) for s in scenarios for v in dict.fromkeys(run.variant for run in runs)):
        if (cell := sample.pairs.get((variant, place))) is None:
            continue
        who = variant, (place,)
        means += (m for d in measures if (m := _member(sample, who, d)) is not None)
        if cell.paired:
            more += (sample.counts(who, d, "arrival") for d in measures[1:2])  # of the cost asked for
        more.append(sample.counts(who, measures[0], "divergence"))
    least = {id(each): 2.0 ** (1 - sum(each.alone())) for each in more}
    while comparisons < others + sum(p <= options.alpha / max(1, comparisons) for p in least.values()):
        comparisons += 1
    comparisons = max(1, comparisons)
    family = means + [each for each in more if least[id(each)] <= options.alpha / comparisons]
    decided = step_down(family, comparisons, options.alpha)
    p, exact = zip(*(member.p() for member in family), strict=True) if family else ((), ())
    tests = zip(holm(p, comparisons), exact, holm(exact, comparisons), strict=True)
    return tuple(
        Claim(
            **vars(m), decision=decision, design=m.one_look(comparisons, options.alpha), p_holm=one,
            p_exact=two, p_exact_holm=three,
        )
        for m, decision, (one, two, three) in zip(family, decided, tests, strict=True)
    )  # fmt: skip


def _member(sample: Sample, who: Who, deciding: Deciding) -> Evidence | None:
    """Return the evidence of a claim about a mean; None where there is nothing to claim."""
    cell = sample.pairs[who[0], who[1][0]]
    if not cell.ours or not cell.theirs:
        return None
    known = sample.evidence(who, deciding)
    if cell.paired:
        return known
    if deciding.target is not None:
        return None  # runs that are not paired allow no claim about a cost
    ours, theirs = (np.array([deciding.value(run)[0] for run in side]) for side in (cell.ours, cell.theirs))
    return replace(known, unpaired=(ours, theirs))


def step_down(family: Sequence[Evidence], comparisons: int, alpha: float = ALPHA) -> list[Decision]:
    """Decide the claims of a family by one look."""
    whole = [member.decide(member.one_look(comparisons, alpha)) for member in family]
    found, left = whole, comparisons
    while (rest := comparisons - sum(decision.decided for decision in found)) < left:
        left = rest
        found = [
            d if d.decided else m.decide(m.one_look(max(1, left), alpha))
            for d, m in zip(found, family, strict=True)
        ]
    return [_cut(d, w, m.margin or 0.0) for d, w, m in zip(found, whole, family, strict=True)]


def _cut(decision: Decision, whole: Decision, margin: float) -> Decision:
    """Give a decided claim the interval that holds for the family, cut where the decision says more."""
    if not decision.decided:
        return decision
    end = whole.looks[-1]
    if decision.claim == "better":
        end = replace(end, low=max(end.low, 0.0))
    elif decision.claim == "worse":
        end = replace(end, high=min(end.high, 0.0))
    else:
        end = replace(end, inner_low=max(end.inner_low, -margin), inner_high=min(end.inner_high, margin))
    return replace(whole, claim=decision.claim, looks=(end,))
