"""Claims of one look, corrected together: Holm's steps over evidence, and which claims are a family.

A claim that is decided leaves its share of the level to the others. So the others are judged again, with
fewer comparisons (Holm 1979). The interval shown beside a decided claim holds for the whole family, cut
where the decision says more. That beside an open claim has the level of the last step. Together they cover
all true differences with the level of the family (Guilbaud 2008), and none contradicts its decision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flsel.comparison.judging.claims import Claim, Evidence, arrival_look, evidence, forbidden, mcnemar
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.decisions import Decision, Look
from flsel.comparison.judging.designs import ACCURACY, ALPHA, Design
from flsel.comparison.judging.estimates import flat, holm, moments, p_values, sign_flip, welch_interval
from flsel.comparison.judging.measures import arrival_name
from flsel.comparison.judging.summaries import Analysis


@dataclass(frozen=True)
class FamilyMember:
    """A claim of a family, before the family decides it.

    Attributes:
        evidence: What it rests on.
        margin: Half-width of practical equivalence in its unit, or None.
        alpha: Level of the family.
        arrival: Whether it is about which side arrives more often.
        unpaired: Values of both sides, where runs are not paired.
    """

    evidence: Evidence
    margin: float | None = None
    alpha: float = ALPHA
    arrival: bool = False
    unpaired: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def n(self) -> int:
        """Pairs that count; of unpaired runs those of the smaller side."""
        return min(map(len, self.unpaired)) if self.unpaired is not None else len(self.evidence.seeds)

    def design(self, comparisons: int) -> Design:
        """Return the rules, for so many comparisons."""
        return Design.fixed(max(2, self.n), comparisons, self.margin, self.alpha)

    def decide(self, comparisons: int) -> Decision:
        """Decide the claim, corrected for so many comparisons."""
        if self.n < 2:
            return Decision("open", self.n)
        if self.arrival:
            return self._decide_arrival(comparisons)
        if self.unpaired is not None:
            return self._decide_unpaired(comparisons)
        return self.evidence.decide(self.design(comparisons))

    def p(self) -> tuple[float, float]:
        """Return the p-value of the interval, and that of the exact sign-flip test."""
        if self.n < 2:
            return math.nan, math.nan
        if self.arrival:
            return (mcnemar(*self.evidence.alone(self.n)),) * 2
        if self.unpaired is not None:
            return welch_interval(*self.unpaired)[1], math.nan
        known, p, exact = self.evidence, 1.0, 1.0
        if known.too_silent():
            return p, exact
        # Better is tested over the lower ends, and worse over the upper ones.
        for values, sign in ((known.lower, 1), (known.upper, -1)):
            if np.isfinite(values).all() and sign * values.mean() > 0:
                found = moments(values[None], 0.0 if flat(values) else known.resolution)
                p, exact = float(p_values(*found, self.n)[0]), sign_flip(values)
        return p, exact

    def _decide_arrival(self, comparisons: int) -> Decision:
        ours, theirs = self.evidence.alone(self.n)
        sure = mcnemar(ours, theirs) <= self.alpha / comparisons
        claim = ("better" if ours > theirs else "worse") if sure else "open"
        return Decision(claim, self.n, looks=(arrival_look(self.n, ours, theirs),))  # type: ignore[arg-type]

    def _decide_unpaired(self, comparisons: int) -> Decision:
        ours, theirs = self.unpaired or (np.zeros(0), np.zeros(0))
        level = 1 - self.alpha / comparisons
        found, p = welch_interval(ours, theirs, level)
        inner, _ = welch_interval(ours, theirs, 1 - 2 * self.alpha / comparisons)
        look = Look(
            self.n, found.value, math.nan, found.low, found.high, inner.low, inner.high, 1.0, found.value,
            found.value,
        )  # fmt: skip
        many, withheld = self.n >= self.design(1).fewest and not math.isnan(p), self.evidence.diverged
        better, worse = found.low > 0 and not withheld.better, found.high < 0 and not withheld.worse
        claim = ("better" if better else "worse") if many and (better or worse) else "open"
        return Decision(claim, self.n, looks=(look,))  # type: ignore[arg-type]


def step_down(family: Sequence[FamilyMember], comparisons: int) -> list[Decision]:
    """Decide the claims of a family by one look."""
    whole = [member.decide(comparisons) for member in family]
    found, left = whole, comparisons
    while (rest := comparisons - sum(decision.decided for decision in found)) < left:
        left = rest
        found = [d if d.decided else m.decide(max(1, left)) for d, m in zip(found, family, strict=True)]
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


def family_measures(analysis: Analysis) -> list[Deciding]:
    """Return what the claims of a fixed number of seeds are about: the score, and costs to a target.

    A target that was chosen after the runs allows no claim. It makes a family that was declared no smaller.
    """
    last, target, score = analysis.options.last, analysis.target, analysis.options.score
    found = [Deciding(ACCURACY, last, score=score)]
    if target is None or (target.chosen_after and not analysis.declares_target):
        return found
    costs = dict.fromkeys((analysis.options.cost, "simulated_seconds"))
    there = {reached.measure for reached in analysis.reached.values()}
    return found + [Deciding(c, last, target.value, score) for c in costs if arrival_name(c, last) in there]


def fixed_claims(analysis: Analysis) -> tuple[Claim, ...]:
    """Decide the claims of a fixed number of seeds: one family over variants, scenarios and measures.

    Which side arrives more often is a claim of the family if there are so many pairs in which only one of the
    two arrives that the exact test could reject (Tarone 1990).
    """
    options = analysis.options
    measures, alpha = family_measures(analysis), options.alpha
    there = {(run.variant, run.scenario) for run in analysis.runs}
    here = sum(variant != options.baseline for variant, _ in there)
    comparisons = others = len(measures) * max(here, options.declared_cells)
    family, arrivals = list[FamilyMember](), list[FamilyMember]()
    for scenario in analysis.scenarios:
        for variant in (v for v in analysis.variants if v != options.baseline):
            for at, deciding in enumerate(measures):
                member = _member(analysis, variant, scenario, deciding)
                if member is not None:
                    family.append(member)
                    if at == 1 and member.unpaired is None:  # the cost asked for
                        known = _with_diverged(analysis, member.evidence)
                        arrivals.append(replace(member, evidence=known, arrival=True, margin=None))
    discordant = [sum(member.evidence.alone(member.n)) for member in arrivals]
    while comparisons < others + sum(2.0 ** (1 - d) <= alpha / max(1, comparisons) for d in discordant):
        comparisons += 1
    comparisons = max(1, comparisons)
    family += [m for m, d in zip(arrivals, discordant, strict=True) if 2.0 ** (1 - d) <= alpha / comparisons]
    decided = step_down(family, comparisons)
    p, exact = zip(*(member.p() for member in family), strict=True) if family else ((), ())
    tests = zip(p, holm(p, comparisons), exact, holm(exact, comparisons), strict=True)
    return tuple(
        Claim(
            **vars(m.evidence), decision=decision, design=m.design(comparisons), paired=m.unpaired is None,
            kind="arrival" if m.arrival else "mean", p=one, p_holm=two, p_exact=three, p_exact_holm=four,
        )
        for m, decision, (one, two, three, four) in zip(family, decided, tests, strict=True)
    )  # fmt: skip


def _with_diverged(analysis: Analysis, known: Evidence) -> Evidence:
    """Add the pairs in which one run diverged, and so never arrives, where the other arrives."""
    variant, base, scenario = known.variant, analysis.options.baseline, known.scenario
    arrived = {
        (run.variant, run.seed)
        for name in (variant, base)
        for run in analysis.of(name, scenario)
        if known.deciding.arrived(run)
    }
    lost = {(r.variant, r.seed) for r in analysis.runs if (r.scenario, r.status) == (scenario, "diverged")}
    more = [(seed, who != variant) for who, seed in sorted(lost) if who in (variant, base)]
    more = [(seed, ours) for seed, ours in more if (variant if ours else base, seed) in arrived]
    ours = np.append(known.ours, [int(wins) for _, wins in more]).astype(int)
    theirs = np.append(known.theirs, [int(not wins) for _, wins in more]).astype(int)
    return replace(known, seeds=(*known.seeds, *(seed for seed, _ in more)), ours=ours, theirs=theirs)


def _member(analysis: Analysis, variant: str, scenario: str, deciding: Deciding) -> FamilyMember | None:
    pairs, options = analysis.pairs[scenario, variant], analysis.options
    if not pairs.ours or not pairs.theirs:
        return None
    diverged = forbidden(analysis.runs, variant, options.baseline, (scenario,))
    alpha = options.alpha
    margin = options.margins.get("cost" if deciding.target is not None else ACCURACY)
    by_seed = {a.seed: (a, b) for a, b in zip(pairs.ours, pairs.theirs, strict=False)}
    seeds = tuple(by_seed) if pairs.paired else ()
    known = evidence((variant, scenario), [by_seed], seeds, analysis.runs, deciding, diverged)
    known = replace(known, most=max(len(analysis.of(v, scenario)) for v in (variant, options.baseline)))
    if pairs.paired:
        return FamilyMember(known, margin, alpha)
    if deciding.target is not None:
        return None  # runs that are not paired allow no claim about a cost
    ours, theirs = (
        np.array([deciding.score.gains * analysis.values[str(run.folder)][deciding.measure] for run in side])
        for side in (pairs.ours, pairs.theirs)
    )
    return FamilyMember(known, margin, alpha, unpaired=(ours, theirs))
