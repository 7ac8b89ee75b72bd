"""A claim about a variant and the baseline, computed from pairs of runs and a design.

What a claim rests on is its *evidence*: the differences of its pairs in the measure that it is about, or in
how many pairs only one side arrives, or diverges. A design with several looks decides each claim by itself.
One look decides a family of claims by Holm's steps (:mod:`flsel.comparison.judging.families`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from scipy import stats

from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.decisions import Claim as Outcome
from flsel.comparison.judging.decisions import Decision, Look, Withheld, decide
from flsel.comparison.judging.designs import ALPHA, FIRST_LOOK, Design
from flsel.comparison.judging.estimates import (
    Estimate,
    flat,
    moments,
    p_values,
    sign_flip,
    welch_interval,
)
from flsel.comparison.judging.pairs import Pairs, form_pairs
from flsel.comparison.judging.settings import Change, Options
from flsel.comparison.run_table import Run

MEAN = "mean over scenarios"
"""Name of the scenario of a claim about the mean over several scenarios."""
Kind = Literal["mean", "arrival", "divergence"]
_NONE = np.zeros(0, dtype=int)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the pairs of a claim show.

    Attributes:
        variant: What is compared.
        scenario: Where, or :data:`MEAN`.
        deciding: What it is about.
        kind: ``mean``, or ``arrival`` or ``divergence`` if it says which of the two does so more often.
        seeds: Seeds of the pairs that count, in order.
        order: Seeds of all pairs in order, also of those in which neither run arrives, so that nothing is
            known.
        lower: Lower ends of the differences in the unit of what decides, ``[n]``; positive is better.
        upper: Upper ends; the same but where runs are late.
        ours: In each pair the runs of the variant that reached the target, or that diverged, ``[n]``.
        theirs: Those of the baseline.
        runs: Runs of each side in a pair: one for each scenario of a mean.
        resolution: Resolution of one difference; 0 if unknown.
        diverged: Claims that diverged runs forbid.
        most: Runs of the side that has more; those without a partner count for nothing.
        margin: Half-width of practical equivalence in its unit, or None.
        unpaired: Values of both sides, where runs are not paired.
    """

    variant: str
    scenario: str
    deciding: Deciding
    kind: Kind = "mean"
    seeds: tuple[int, ...] = ()
    lower: np.ndarray = field(default_factory=_NONE.copy)
    upper: np.ndarray = field(default_factory=_NONE.copy)
    order: tuple[int, ...] = ()
    ours: np.ndarray = field(default_factory=_NONE.copy)
    theirs: np.ndarray = field(default_factory=_NONE.copy)
    runs: int = 1
    resolution: float = 0.0
    diverged: Withheld = field(default_factory=Withheld)
    most: int = 0
    margin: float | None = None
    unpaired: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def n(self) -> int:
        """Pairs that count; of unpaired runs those of the smaller side."""
        return min(map(len, self.unpaired)) if self.unpaired is not None else len(self.seeds)

    @property
    def left_out(self) -> int:
        """Pairs of which nothing is known."""
        return len(set(self.order) - set(self.seeds))

    def one_look(self, comparisons: int, alpha: float = ALPHA) -> Design:
        """Return the rules of one look at all of it, for so many comparisons."""
        return Design.fixed(max(2, self.n), comparisons, self.margin, alpha)

    def decide(self, design: Design) -> Decision:
        """Decide the claim by some rules."""
        if self.kind != "mean":
            return self.decide_counts(design.alpha / design.comparisons)
        if design.once and self.n < 2:
            return Decision("open", self.n)
        if self.unpaired is not None:
            return self._decide_unpaired(design)
        withheld, kept = self.diverged, len(self.seeds)
        if design.once and self.too_silent():
            withheld = replace(withheld, better=max(1, withheld.better), worse=max(1, withheld.worse))
        elif not design.once:  # from the first look with too many silent pairs on, nothing is known
            kept = next((n for n in design.looks if n <= kept and self.too_silent(n)), kept + 1) - 1
        lower, upper = self.lower.copy(), self.upper.copy()
        lower[kept:], upper[kept:] = -math.inf, math.inf
        return decide(lower, design, upper=upper, resolution=self.resolution, withheld=withheld)

    def decide_counts(self, level: float) -> Decision:
        """Decide by the exact McNemar test which side has more, at a level."""
        more, less = self.alone() if self.kind == "arrival" else self.alone()[::-1]
        share, none = (more - less) / max(1, self.n), math.nan
        look = Look(self.n, share, none, none, none, none, none, 1.0, share, share)
        claim: Outcome = "open" if self.p()[0] > level else "better" if more > less else "worse"
        return Decision(claim, self.n, looks=(look,))

    def _decide_unpaired(self, design: Design) -> Decision:
        ours, theirs = self.unpaired or (_NONE, _NONE)
        level = design.alpha / design.comparisons
        found, p = welch_interval(ours, theirs, 1 - level)
        inner, _ = welch_interval(ours, theirs, 1 - 2 * level)
        look = Look(
            self.n, found.value, math.nan, found.low, found.high, inner.low, inner.high, 1.0, found.value,
            found.value,
        )  # fmt: skip
        many = self.n >= design.fewest and not math.isnan(p)
        better, worse = found.low > 0 and not self.diverged.better, found.high < 0 and not self.diverged.worse
        claim: Outcome = "better" if many and better else "worse" if many and worse else "open"
        return Decision(claim, self.n, looks=(look,))

    def p(self) -> tuple[float, float]:
        """Return the p-value of the interval of one look, and that of the exact test.

        Both are NaN where the direction that pairs show may not be claimed, so that nothing is tested.
        """
        if self.kind != "mean":
            return (mcnemar(*self.alone()),) * 2
        if self.n < 2:
            return math.nan, math.nan
        if self.unpaired is not None:
            found, p = welch_interval(*self.unpaired)
            forbidden = self.diverged.better if found.value > 0 else self.diverged.worse
            return math.nan if forbidden else p, math.nan
        # Better is tested over the lower ends, and worse over the upper ones.
        sides = (self.lower, 1, self.diverged.better), (self.upper, -1, self.diverged.worse)
        known = [side for side in sides if np.isfinite(side[0]).all()]
        if not known or self.too_silent():
            return math.nan, math.nan
        for values, sign, forbidden in known:
            if sign * values.mean() > 0:
                if forbidden:
                    return math.nan, math.nan
                ends = moments(values[None], 0.0 if flat(values) else self.resolution)
                return float(p_values(*ends, self.n)[0]), sign_flip(values)
        return 1.0, 1.0

    def too_silent(self, n: int | None = None) -> bool:
        """Tell whether more than a third of all pairs say nothing, or of those up to the n-th that counts.

        What arrives early is then no fair sample: if costs of one side spread more, its early arrivals make
        it look cheaper.
        """
        among = len(self.seeds) if n is None else n
        out = self.left_out if n is None or not self.left_out else self.order.index(self.seeds[n - 1]) - n + 1
        return out > (among + out) / 3

    def same(self, n: int) -> bool:
        """Tell whether the differences of the first n pairs are one number, so that no spread is known."""
        if self.unpaired is not None:
            return all(map(flat, self.unpaired))
        lower, upper = self.lower[:n], self.upper[:n]
        return len(lower) > 0 and np.array_equal(lower, upper) and flat(lower)

    def alone(self, n: int | None = None) -> tuple[int, int]:
        """Return in how many of the first n pairs only the variant arrives, or diverges; and the baseline."""
        ours, theirs = self.ours[:n], self.theirs[:n]
        return int((ours > theirs).sum()), int((theirs > ours).sum())

    def arrived(self, n: int) -> tuple[int, int]:
        """Return how many runs of the variant and of the baseline reached the target in the first n pairs."""
        return int(self.ours[:n].sum()), int(self.theirs[:n].sum())


@dataclass(frozen=True, kw_only=True)
class Claim(Evidence):
    """One claim about a variant and the baseline: what it rests on, and what became of it.

    Attributes:
        decision: What became of it.
        design: The rules.
        p_holm: Two-sided p-value, of a mean that of one look, corrected for the family; NaN of several looks.
        p_exact: P-value of the exact sign-flip test of the pairs at the last look.
        p_exact_holm: The same, corrected for the family.
        exploratory: Why it is no claim but a description: what was changed when results could be seen.
    """

    decision: Decision
    design: Design
    p_holm: float = math.nan
    p_exact: float = math.nan
    p_exact_holm: float = math.nan
    exploratory: tuple[str, ...] = ()

    @property
    def paired(self) -> bool:
        """Whether runs are compared seed by seed."""
        return self.unpaired is None

    @property
    def measure(self) -> str:
        """Name of the measure that it is about."""
        return self.deciding.measure

    @property
    def looked(self) -> int:
        """Pairs at the last look; all there are where there was none."""
        return self.decision.looks[-1].n if self.decision.looks else self.n

    @property
    def used(self) -> tuple[int, ...]:
        """Seeds of the pairs that the last look used."""
        return self.seeds[: self.looked]

    @property
    def withheld(self) -> str:
        """The direction that the interval shows and diverged runs forbid; empty where there is none."""
        if self.kind != "mean" or self.decision.claim not in ("open", "undecided") or not self.decision.looks:
            return ""
        end, lost = self.decision.looks[-1], self.diverged
        if end.n < self.design.fewest:
            return ""
        return "better" if end.low > 0 and lost.better else "worse" if end.high < 0 and lost.worse else ""

    @property
    def tested(self) -> bool:
        """Whether its p-values are shown: those of one look at enough pairs, and of no description."""
        enough = self.design.once and self.looked >= self.design.fewest
        return enough and not self.exploratory and not math.isnan(self.p_holm)

    @property
    def made(self) -> bool:
        """Whether it is decided, and nothing makes it exploratory."""
        return self.decision.decided and not self.exploratory

    @property
    def late(self) -> bool:
        """Whether some run in the pairs of the last look did not arrive."""
        n = self.looked
        return self.deciding.target is not None and self.arrived(n) != (n * self.runs, n * self.runs)

    @property
    def shown(self) -> Estimate | None:
        """The estimate in the unit of its measure, with the interval that decides; None without a look.

        Of a cost it is the ratio to the baseline's. Where runs are late it is a bound of the ratio. It has no
        interval where no spread is known.
        """
        if not self.decision.looks:
            return None
        end = self.decision.looks[-1]
        if self.same(end.n) or (math.isinf(end.low) and not self.late):
            end = replace(end, low=math.nan, high=math.nan)
        if self.deciding.target is None:
            gains, most = self.deciding.score.gains, self.deciding.widest
            low, high = sorted(float(np.clip(x, -most, most)) / gains for x in (end.low, end.high))
            return Estimate(end.mean / gains, low, high, end.n)
        value = end.mean if not self.late else end.least if math.isfinite(end.least) else end.most
        return Estimate(math.exp(-value), math.exp(-end.high), math.exp(-end.low), end.n)

    def marked(self, changes: Sequence[Change]) -> Claim:
        """Return it with what makes it exploratory: the changes that it depends on.

        Nothing is said of where a direction lies beside a margin that was changed.
        """
        score, margins = self.deciding.score, ("margin", "margin_ratio")
        found = tuple(change.words(score) for change in changes if self._depends_on(change))
        moved = any(change.what in margins and self._later(change) for change in changes)
        decision = (
            replace(self.decision, within_margin=False, beyond_margin=False) if moved else self.decision
        )
        return replace(self, exploratory=found, decision=decision)

    def _later(self, change: Change) -> bool:
        """Tell whether it was decided after a change; one look is judged anew."""
        return self.design.once or self.looked > change.seen

    def _depends_on(self, change: Change) -> bool:
        of_cost, counts = self.deciding.target is not None, self.kind == "divergence"
        later = self.decision.claim == "equivalent" and self._later(change)
        return {
            "target": of_cost and not counts,
            "cost": of_cost and not counts,
            "last": not counts,
            "margin": later and not of_cost,
            "margin_ratio": later and of_cost,
            "variants": change.what == "variants" and self.variant in change.after,
            "scenarios": change.what == "scenarios" and self.scenario in (MEAN, *change.after),
        }.get(change.what, True)


def mcnemar(only_ours: int, only_theirs: int) -> float:
    """Return the two-sided p-value of the exact test of pairs in which only one side has something."""
    discordant = only_ours + only_theirs
    return float(stats.binomtest(only_ours, discordant).pvalue) if discordant else 1.0


Who = tuple[str, Sequence[str]]
"""A variant, and the scenarios over which a difference is a mean."""


@dataclass(frozen=True)
class Sample:
    """Runs in pairs, from which evidence is taken.

    Attributes:
        runs: Every run, complete or not.
        options: How they are judged.
    """

    runs: tuple[Run, ...]
    options: Options

    @cached_property
    def pairs(self) -> Mapping[tuple[str, str], Pairs]:
        """By variant and scenario, how runs were paired."""
        return form_pairs(self.runs, self.options.baseline, unpaired=self.options.unpaired)

    def evidence(self, who: Who, deciding: Deciding) -> Evidence:
        """Measure the differences of a variant's pairs."""
        variant, name = who[0], who[1][0] if len(who[1]) == 1 else MEAN
        cells = [self.pairs.get((variant, s), Pairs((), (), {})) for s in who[1]]
        places = [cell.by_seed for cell in cells]
        before = self.options.order.get((variant, name), ())
        shared = [seed for seed in places[0] if all(seed in place for place in places)]
        seeds = [s for s in before if s in shared] + [s for s in shared if s not in before]
        every = {seed: [place[seed] for place in places] for seed in seeds}
        # By seed the lower and the upper end, a mean over the scenarios.
        ends = {s: np.mean([deciding.difference(*both) for both in cs], axis=0) for s, cs in every.items()}
        known = tuple(seed for seed in seeds if np.isfinite(ends[seed]).any())
        lower, upper = (np.array([float(ends[seed][side]) for seed in known]) for side in (0, 1))
        ours, theirs = (
            np.array([sum(deciding.arrived(both[side]) for both in every[seed]) for seed in known], dtype=int)
            for side in (0, 1)
        )
        steps = [deciding.resolution(self.runs, [p[s][1] for s in seeds[:FIRST_LOOK]]) for p in places]
        lost = [
            (seed, *(run is not None and run.status == "diverged" for run in both))
            for cell in cells
            for seed, both in cell.ended.items()
        ]
        diverged = Withheld(
            len({seed for seed, ours, theirs in lost if ours > theirs}),
            len({seed for seed, ours, theirs in lost if theirs > ours}),
            len({seed for seed, ours, theirs in lost if ours or theirs}),
        )
        most = max((cell.most for cell in cells if cell.ended), default=0)
        return Evidence(
            variant=variant, scenario=name, deciding=deciding, seeds=known, lower=lower, upper=upper,
            order=tuple(seeds), ours=ours, theirs=theirs, runs=len(places),
            resolution=float(np.mean(steps)), diverged=diverged, most=most,
            margin=self.options.margin_of(cost=deciding.target is not None),
        )  # fmt: skip

    def counts(self, who: Who, deciding: Deciding, kind: Kind) -> Evidence:
        """Count in each pair that ended the runs that arrived, or diverged, which never arrive."""
        variant, name = who[0], who[1][0] if len(who[1]) == 1 else MEAN
        cells = [self.pairs[variant, s].ended for s in who[1] if (variant, s) in self.pairs]

        def counted(run: Run | None) -> bool:
            if run is None or kind == "divergence":
                return run is not None and run.status == "diverged"
            return run.status == "complete" and deciding.arrived(run)

        seeds = [
            seed
            for seed in (cells[0] if cells else ())
            if all(None not in cell.get(seed, (None,)) for cell in cells)
        ]
        ours, theirs = (
            np.array([sum(counted(cell[seed][side]) for cell in cells) for seed in seeds], dtype=int)
            for side in (0, 1)
        )
        return Evidence(
            variant=variant, scenario=name, deciding=deciding, kind=kind, seeds=tuple(seeds), ours=ours,
            theirs=theirs, runs=len(cells),
        )  # fmt: skip
