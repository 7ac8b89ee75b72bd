"""The claims of a comparison until they are decided: ordered paired differences, and the decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.decisions import Decision, Withheld, decide
from flsel.comparison.judging.designs import GIVE_UP_FROM, Design, UntilDecided
from flsel.comparison.judging.pairs import pair
from flsel.comparison.run_table import Run, complete

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
        target: Test accuracy to reach, or None.
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

    def deciding(self, last: int) -> Deciding:
        """Return what decides, with so many evaluations in a mean."""
        return Deciding.of(self.rules, self.target, last)

    @property
    def scenario_design(self) -> Design:
        """The rules of an interval in one scenario."""
        return self.rules.design(len(self.variants), len(self.scenarios), each=True)


@dataclass(frozen=True)
class Claim:
    """One claim about a variant and the baseline.

    Attributes:
        variant: What is compared.
        scenario: Where, or :data:`MEAN`.
        deciding: What it is about.
        seeds: Seeds of the pairs that count, in order.
        differences: Their differences in the unit of what decides, ``[n]``; lower ends where runs are late.
        left_out: Pairs of which nothing is known, since neither run arrives.
        ours: In each pair the runs of the variant that reached the target, ``[n]``.
        theirs: Those of the baseline.
        runs: Runs of each side in a pair: one for each scenario of a mean.
        decision: What became of it.
        design: The rules.
        diverged: Claims that diverged runs forbid.
    """

    variant: str
    scenario: str
    deciding: Deciding
    seeds: tuple[int, ...]
    differences: np.ndarray
    left_out: int
    ours: np.ndarray
    theirs: np.ndarray
    runs: int
    decision: Decision
    design: Design
    diverged: Withheld

    @property
    def used(self) -> tuple[int, ...]:
        """Seeds of the pairs that the last look used."""
        return self.seeds[: self.decision.looks[-1].n] if self.decision.looks else self.seeds

    @property
    def late(self) -> bool:
        """Whether some run in the pairs of the last look did not arrive."""
        n = len(self.used)
        return self.arrived(n) != (n * self.runs, n * self.runs) and self.deciding.target is not None

    def arrived(self, n: int) -> tuple[int, int]:
        """Return how many runs of the variant and of the baseline reached the target in the first n pairs."""
        return int(self.ours[:n].sum()), int(self.theirs[:n].sum())


def claims(runs: Sequence[Run], baseline: str, last: int, how: Sequential) -> tuple[Claim, ...]:
    """Decide every claim, as far as the runs go.

    Args:
        runs: The runs that are there.
        baseline: The variant that others are compared with.
        last: Evaluations in the mean at the end.
        how: The rules.
    """
    deciding = how.deciding(last)
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in complete(runs):
        cells.setdefault((run.variant, run.scenario), []).append(run)
    places = [(s,) for s in how.scenarios] if how.rules.each_scenario else [how.scenarios]
    found = []
    for scenarios in places:
        name = scenarios[0] if len(scenarios) == 1 else MEAN
        for variant in how.variants:
            if variant == baseline:
                continue
            pairs = [_pairs(cells.get((variant, s), []), cells.get((baseline, s), [])) for s in scenarios]
            shared = [seed for seed in pairs[0] if all(seed in place for place in pairs)]
            seeds = _ordered(shared, how.order.get((variant, name), ()))
            diverged = _diverged(runs, variant, baseline, scenarios)
            found.append(_claim(_Pairs(variant, name, seeds, pairs), runs, deciding, how.design, diverged))
    return tuple(found)


@dataclass(frozen=True)
class _Pairs:
    """The pairs of a claim: by scenario and seed the runs of the variant and of the baseline."""

    variant: str
    scenario: str
    seeds: tuple[int, ...]
    places: Sequence[Mapping[int, tuple[Run, Run]]]


def _claim(
    pairs: _Pairs, runs: Sequence[Run], deciding: Deciding, design: Design, diverged: Withheld
) -> Claim:
    every = {seed: [place[seed] for place in pairs.places] for seed in pairs.seeds}
    ends = {seed: _mean_ends([deciding.difference(*both) for both in cells]) for seed, cells in every.items()}
    seeds = tuple(seed for seed in pairs.seeds if ends[seed] != (-math.inf, math.inf))
    lower, upper = (np.array([ends[seed][side] for seed in seeds]) for side in (0, 1))
    ours, theirs = (
        np.array([sum(deciding.arrived(both[side]) for both in every[seed]) for seed in seeds], dtype=int)
        for side in (0, 1)
    )
    steps = [deciding.resolution(runs, [place[s][1] for s in pairs.seeds]) for place in pairs.places]
    decision = decide(lower, design, upper=upper, resolution=float(np.mean(steps)), withheld=diverged)
    nothing = len(seeds) == 0 and len(pairs.seeds) >= GIVE_UP_FROM
    if decision.claim == "undecided" and (nothing or len(pairs.seeds) >= design.maximum):
        # Pairs in which neither arrives take the other seeds.
        decision = replace(decision, claim="open", n=len(pairs.seeds), given_up=nothing)
    return Claim(
        pairs.variant, pairs.scenario, deciding, seeds, lower, len(pairs.seeds) - len(seeds), ours, theirs,
        len(pairs.places), decision, design, diverged,
    )  # fmt: skip


def _mean_ends(ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return float(np.mean([low for low, _ in ends])), float(np.mean([high for _, high in ends]))


def order_of(found: Sequence[Claim]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the order of the pairs of every claim, to be kept."""
    return {(claim.variant, claim.scenario): claim.seeds for claim in found}


def _pairs(ours: Sequence[Run], theirs: Sequence[Run]) -> dict[int, tuple[Run, Run]]:
    """Return the pairs of one scenario by seed."""
    found = pair(ours, theirs, unpaired=False)
    return {a.seed: (a, b) for a, b in zip(found.ours, found.theirs, strict=True)}


def _ordered(seeds: Sequence[int], known: Sequence[int]) -> tuple[int, ...]:
    before = [seed for seed in known if seed in seeds]
    return (*before, *sorted(seed for seed in seeds if seed not in before))


def _diverged(runs: Sequence[Run], variant: str, baseline: str, scenarios: Sequence[str]) -> Withheld:
    """Withhold what runs forbid that diverged where the other side's did not; equivalence where any did."""
    mine, yours = (
        {
            (run.scenario, run.seed)
            for run in runs
            if run.variant == name and run.status == "diverged" and run.scenario in scenarios
        }
        for name in (variant, baseline)
    )
    return Withheld(better=bool(mine - yours), worse=bool(yours - mine), equivalent=bool(mine | yours))
