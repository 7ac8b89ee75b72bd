"""A claim about a variant and the baseline, computed from pairs of runs and a design.

What a claim rests on is its *evidence*: the differences of its pairs in the measure that it is about. A
design with several looks decides each claim by itself. One look decides a family of claims by Holm's steps
(:mod:`flsel.comparison.judging.families`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from flsel.comparison.judging.boundaries import FIRST_LOOK, spent
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.decisions import Claim as Side
from flsel.comparison.judging.decisions import Decision, Look, Withheld, decide
from flsel.comparison.judging.designs import GIVE_UP_FROM, Design, UntilDecided
from flsel.comparison.judging.estimates import Estimate, sign_flip
from flsel.comparison.judging.pairs import pair
from flsel.comparison.run_table import Run, common_score, complete
from flsel.metrics import Score

Order = Mapping[tuple[str, str], Sequence[int]]
"""By variant and scenario the seeds of the pairs, in the order in which they were there."""
MEAN = "mean over scenarios"
"""Name of the scenario of a claim about the mean over several scenarios."""


@dataclass(frozen=True)
class Sequential:
    """How claims are decided.

    Attributes:
        rules: What was declared.
        variants: Names of all variants that were declared.
        scenarios: Names of all scenarios.
        order: The order of the pairs so far. A run that is repaired later is appended, never inserted.
        target: Score to reach, or None.
    """

    rules: UntilDecided
    variants: tuple[str, ...]
    scenarios: tuple[str, ...]
    order: Order
    target: float | None = None

    @property
    def design(self) -> Design:
        """The rules of the claims."""
        return self.rules.design(len(self.variants), len(self.scenarios))

    def deciding(self, last: int, score: Score) -> Deciding:
        """Return what decides, with so many evaluations in a mean of a score."""
        return Deciding.of(self.rules, self.target, last, score)

    @property
    def scenario_design(self) -> Design:
        """The rules of an interval in one scenario."""
        return self.rules.design(len(self.variants), len(self.scenarios), each=True)


@dataclass(frozen=True)
class Evidence:
    """What the pairs of a claim show.

    Attributes:
        variant: What is compared.
        scenario: Where, or :data:`MEAN`.
        deciding: What it is about.
        seeds: Seeds of the pairs that count, in order.
        lower: Lower ends of the differences in the unit of what decides, ``[n]``; positive is better.
        upper: Upper ends; the same but where runs are late.
        left_out: Pairs of which nothing is known, since neither run arrives.
        ours: In each pair the runs of the variant that reached the target, ``[n]``.
        theirs: Those of the baseline.
        runs: Runs of each side in a pair: one for each scenario of a mean.
        resolution: Resolution of one difference; 0 if unknown.
        diverged: Claims that diverged runs forbid.
        most: Runs of the side that has more; those without a partner count for nothing.
        silent: Pairs left out before each pair that counts, in order, ``[n]``; None where none is.
    """

    variant: str
    scenario: str
    deciding: Deciding
    seeds: tuple[int, ...]
    lower: np.ndarray
    upper: np.ndarray
    left_out: int
    ours: np.ndarray
    theirs: np.ndarray
    runs: int
    resolution: float
    diverged: Withheld
    most: int = 0
    silent: np.ndarray | None = None

    def decide(self, design: Design) -> Decision:
        """Decide the claim by some rules."""
        withheld, kept = self.diverged, len(self.seeds)
        if design.once and self.too_silent():
            withheld = replace(withheld, better=max(1, withheld.better), worse=max(1, withheld.worse))
        elif not design.once:  # from the first look with too many silent pairs on, nothing is known
            kept = next((n for n in design.looks if n <= kept and self.too_silent(n)), kept + 1) - 1
        lower, upper = self.lower.copy(), self.upper.copy()
        lower[kept:], upper[kept:] = -math.inf, math.inf
        return decide(lower, design, upper=upper, resolution=self.resolution, withheld=withheld)

    def too_silent(self, n: int | None = None) -> bool:
        """Tell whether more than a third of all pairs say nothing, or of those up to the n-th that counts.

        What arrives early is then no fair sample: if costs of one side spread more, its early arrivals make
        it look cheaper.
        """
        out = self.left_out if n is None or self.silent is None else int(self.silent[n - 1])
        return out > ((len(self.seeds) if n is None else n) + out) / 3

    def alone(self, n: int) -> tuple[int, int]:
        """Return in how many of the first n pairs only the variant arrives, and only the baseline."""
        ours, theirs = self.ours[:n], self.theirs[:n]
        return int((ours > theirs).sum()), int((theirs > ours).sum())


@dataclass(frozen=True, kw_only=True)
class Claim(Evidence):
    """One claim about a variant and the baseline: what it rests on, and what became of it.

    Attributes:
        decision: What became of it.
        design: The rules.
        kind: ``mean``, or ``arrival`` if it says which of the two arrives more often.
        paired: Whether runs are compared seed by seed.
        p: Two-sided p-value of one look; NaN of several.
        p_holm: The same, corrected for the family.
        p_exact: P-value of the exact sign-flip test of the pairs at the last look.
        p_exact_holm: The same, corrected for the family.
        exploratory: Why it is no claim but a description: what was changed when results could be seen.
    """

    decision: Decision
    design: Design
    kind: Literal["mean", "arrival"] = "mean"
    paired: bool = True
    p: float = math.nan
    p_holm: float = math.nan
    p_exact: float = math.nan
    p_exact_holm: float = math.nan
    exploratory: tuple[str, ...] = ()

    @property
    def measure(self) -> str:
        """Name of the measure that it is about."""
        return self.deciding.measure

    @property
    def differences(self) -> np.ndarray:
        """Lower ends of the differences, ``[n]``."""
        return self.lower

    @property
    def used(self) -> tuple[int, ...]:
        """Seeds of the pairs that the last look used."""
        return self.seeds[: self.decision.looks[-1].n] if self.decision.looks else self.seeds

    @property
    def made(self) -> bool:
        """Whether it is decided, and nothing makes it exploratory."""
        return self.decision.decided and not self.exploratory

    @property
    def late(self) -> bool:
        """Whether some run in the pairs of the last look did not arrive."""
        n = len(self.used)
        return self.deciding.target is not None and self.arrived(n) != (n * self.runs, n * self.runs)

    @property
    def shown(self) -> Estimate | None:
        """The estimate in the unit of its measure, with the interval that decides; None without a look.

        Of a cost it is the ratio to the baseline's. Where runs are late it is a bound of the ratio.
        """
        if not self.decision.looks:
            return None
        end = self.decision.looks[-1]
        if self.deciding.target is None:
            gains, most = self.deciding.score.gains, self.deciding.widest
            low, high = sorted((max(end.low, -most) / gains, min(end.high, most) / gains))
            return Estimate(end.mean / gains, low, high, end.n)
        value = end.mean if not self.late else end.least if math.isfinite(end.least) else end.most
        return Estimate(math.exp(-value), math.exp(-end.high), math.exp(-end.low), end.n)

    def arrived(self, n: int) -> tuple[int, int]:
        """Return how many runs of the variant and of the baseline reached the target in the first n pairs."""
        return int(self.ours[:n].sum()), int(self.theirs[:n].sum())

    @property
    def p_arrival(self) -> float:
        """Two-sided p-value of the exact McNemar test that both arrive equally often."""
        return mcnemar(*self.alone(len(self.used)))


def mcnemar(only_ours: int, only_theirs: int) -> float:
    """Return the two-sided p-value of the exact test of pairs in which only one side has something."""
    discordant = only_ours + only_theirs
    return float(stats.binomtest(only_ours, discordant).pvalue) if discordant else 1.0


def claims(runs: Sequence[Run], baseline: str, last: int, how: Sequential) -> tuple[Claim, ...]:
    """Decide every claim look by look, as far as the runs go."""
    deciding, design = how.deciding(last, common_score(runs)), how.design
    cells = by_cell(runs)
    places = [(s,) for s in how.scenarios] if how.rules.each_scenario else [how.scenarios]
    found = []
    for scenarios in places:
        name = scenarios[0] if len(scenarios) == 1 else MEAN
        for variant in (v for v in how.variants if v != baseline):
            pairs = [_pairs(cells.get((variant, s), []), cells.get((baseline, s), [])) for s in scenarios]
            shared = [seed for seed in pairs[0] if all(seed in place for place in pairs)]
            seeds = _ordered(shared, how.order.get((variant, name), ()))
            diverged = forbidden(runs, variant, baseline, scenarios)
            known = evidence((variant, name), pairs, seeds, runs, deciding, diverged)
            sides = [len(cells.get((v, s), ())) for v in (variant, baseline) for s in scenarios]
            known = replace(known, most=max(sides))
            decision = known.decide(design)
            if decision.claim == "undecided" and (
                len(seeds) >= (design.maximum if len(known.seeds) else GIVE_UP_FROM)
            ):
                # Pairs in which neither arrives take the other seeds.
                decision = replace(decision, claim="open", n=len(seeds), given_up=len(known.seeds) == 0)
            n = decision.looks[-1].n if decision.looks else 0
            claim = Claim(**vars(known), decision=decision, design=design, p_exact=_exact(known, n))
            found += [claim, *_arrival(claim)]
    return tuple(found)


def _arrival(cost: Claim) -> Iterator[Claim]:
    """Yield which side arrives more often, if a claim about its cost lets that be claimed.

    It is tested once a direction of the cost is decided, at the level that the look spends. So it takes
    nothing from the level of the cost: where the cost truly differs, only this test can err.
    """
    design, n = cost.design, cost.decision.n
    if cost.deciding.target is None or cost.decision.claim not in ("better", "worse"):
        return
    ours, theirs = cost.alone(n)
    first, before = design.first_maximum or design.maximum, [look for look in design.looks if look < n]
    share = spent(n, first) - (spent(before[-1], first) if before else 0.0)
    p = mcnemar(ours, theirs)
    if p <= share * design.alpha / design.comparisons:
        side: Side = "better" if ours > theirs else "worse"
        decision = Decision(side, n, looks=(arrival_look(n, ours, theirs),))
        yield replace(cost, decision=decision, kind="arrival", p=p, p_exact=math.nan)


def arrival_look(n: int, ours: int, theirs: int) -> Look:
    """Return the look at n pairs: in how many only the variant arrives, and in how many only the baseline."""
    share, none = (ours - theirs) / n, math.nan
    return Look(n, share, none, none, none, none, none, 1.0, share, share)


def evidence(
    who: tuple[str, str],
    places: Sequence[Mapping[int, tuple[Run, Run]]],
    seeds: Sequence[int],
    runs: Sequence[Run],
    deciding: Deciding,
    diverged: Withheld,
) -> Evidence:
    """Measure the differences of pairs.

    Args:
        who: Variant, and scenario or :data:`MEAN`.
        places: For each scenario by seed the runs of the variant and of the baseline.
        seeds: Seeds of the pairs, in order.
        runs: All runs.
        deciding: What is measured.
        diverged: Claims that diverged runs forbid.
    """
    every = {seed: [place[seed] for place in places] for seed in seeds}
    ends = {seed: _mean_ends([deciding.difference(*both) for both in cells]) for seed, cells in every.items()}
    known = tuple(seed for seed in seeds if ends[seed] != (-math.inf, math.inf))
    lower, upper = (np.array([ends[seed][side] for seed in known]) for side in (0, 1))
    ours, theirs = (
        np.array([sum(deciding.arrived(both[side]) for both in every[seed]) for seed in known], dtype=int)
        for side in (0, 1)
    )
    silent = np.cumsum([seed not in known for seed in seeds])[[seed in known for seed in seeds]]
    steps = [deciding.resolution(runs, [place[s][1] for s in seeds[:FIRST_LOOK]]) for place in places]
    return Evidence(
        *who, deciding, known, lower, upper, len(every) - len(known), ours, theirs, len(places),
        float(np.mean(steps)), diverged, silent=silent,
    )  # fmt: skip


def by_cell(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    """Return the complete runs by variant and scenario."""
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in complete(runs):
        cells.setdefault((run.variant, run.scenario), []).append(run)
    return cells


def order_of(found: Sequence[Claim]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the order of the pairs of every claim, to be kept."""
    return {(claim.variant, claim.scenario): claim.seeds for claim in found}


def forbidden(runs: Sequence[Run], variant: str, baseline: str, scenarios: Sequence[str]) -> Withheld:
    """Withhold what runs forbid that diverged where the other side's did not; equivalence where any did."""
    mine, yours = (
        {
            (run.scenario, run.seed)
            for run in runs
            if run.variant == name and run.status == "diverged" and run.scenario in scenarios
        }
        for name in (variant, baseline)
    )
    return Withheld(len(mine - yours), len(yours - mine), len(mine | yours))


def _exact(known: Evidence, n: int) -> float:
    values = known.lower[:n]
    return sign_flip(values) if n and np.array_equal(values, known.upper[:n]) else math.nan


def _mean_ends(ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return float(np.mean([low for low, _ in ends])), float(np.mean([high for _, high in ends]))


def _pairs(ours: Sequence[Run], theirs: Sequence[Run]) -> dict[int, tuple[Run, Run]]:
    """Return the pairs of one scenario by seed."""
    found = pair(ours, theirs, unpaired=False)
    return {a.seed: (a, b) for a, b in zip(found.ours, found.theirs, strict=True)}


def _ordered(seeds: Sequence[int], known: Sequence[int]) -> tuple[int, ...]:
    before = [seed for seed in known if seed in seeds]
    return (*before, *sorted(seed for seed in seeds if seed not in before))
