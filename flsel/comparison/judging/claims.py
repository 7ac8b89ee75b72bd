"""The claims of a comparison until they are decided: ordered paired differences, and the decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flsel.comparison.judging.pairing import pair
from flsel.comparison.run_table import Run
from flsel.comparison.sequential.decide import Decision, Withheld, decide
from flsel.comparison.sequential.design import Design, UntilDecided

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
    """

    rules: UntilDecided
    variants: tuple[str, ...]
    scenarios: tuple[str, ...]
    order: Order

    @property
    def design(self) -> Design:
        """The rules of the claims."""
        return self.rules.design(len(self.variants), len(self.scenarios))

    @property
    def scenario_design(self) -> Design:
        """The rules of an interval in one scenario."""
        return self.rules.design(len(self.variants), len(self.scenarios), each=True)


@dataclass(frozen=True)
class Claim:
    """One claim about a variant and the baseline, in points of accuracy.

    Attributes:
        variant: What is compared.
        scenario: Where, or :data:`MEAN`.
        seeds: Seeds of the pairs, in order.
        differences: Their differences in points, ``[n]``.
        decision: What became of it.
        design: The rules.
        withheld: Claims that diverged runs forbid.
    """

    variant: str
    scenario: str
    seeds: tuple[int, ...]
    differences: np.ndarray
    decision: Decision
    design: Design
    withheld: Withheld

    @property
    def used(self) -> tuple[int, ...]:
        """Seeds of the pairs that the last look used."""
        return self.seeds[: self.decision.looks[-1].n] if self.decision.looks else self.seeds


def claims(runs: Sequence[Run], baseline: str, last: int, how: Sequential) -> tuple[Claim, ...]:
    """Decide every claim, as far as the runs go.

    Args:
        runs: The runs that are there.
        baseline: The variant that others are compared with.
        last: Evaluations in the mean at the end.
        how: The rules.
    """
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        cells.setdefault((run.variant, run.scenario), []).append(run)
    places = [(s,) for s in how.scenarios] if how.rules.each_scenario else [how.scenarios]
    resolution = _resolution(runs)
    found = []
    for scenarios in places:
        name = scenarios[0] if len(scenarios) == 1 else MEAN
        for variant in how.variants:
            if variant == baseline:
                continue
            ours = [cells.get((variant, s), []) for s in scenarios]
            theirs = [cells.get((baseline, s), []) for s in scenarios]
            by_seed = _mean_differences(ours, theirs, last)
            seeds = _ordered(by_seed, how.order.get((variant, name), ()))
            values = np.array([by_seed[seed] for seed in seeds], dtype=float)
            withheld = _withheld(ours, theirs)
            decision = decide(values, how.design, resolution=resolution, withheld=withheld)
            found.append(Claim(variant, name, seeds, values, decision, how.design, withheld))
    return tuple(found)


def order_of(found: Sequence[Claim]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the order of the pairs of every claim, to be kept."""
    return {(claim.variant, claim.scenario): claim.seeds for claim in found}


def _mean_differences(
    ours: Sequence[Sequence[Run]], theirs: Sequence[Sequence[Run]], last: int
) -> dict[int, float]:
    """Return by seed the difference in points, averaged over the scenarios that all have the pair."""
    listed = []
    for mine, yours in zip(ours, theirs, strict=True):
        pairs = pair(_complete(mine), _complete(yours), unpaired=False)
        listed.append(
            {
                a.seed: _points(a, last) - _points(b, last)
                for a, b in zip(pairs.ours, pairs.theirs, strict=True)
            }
        )
    shared = [seed for seed in listed[0] if all(seed in found for found in listed)]
    return {seed: float(np.mean([found[seed] for found in listed])) for seed in shared}


def _points(run: Run, last: int) -> float:
    return 100 * float(run.columns["test/accuracy"][-last:].mean())


def _complete(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.status == "complete"]


def _ordered(by_seed: Mapping[int, float], known: Sequence[int]) -> tuple[int, ...]:
    before = [seed for seed in known if seed in by_seed]
    return (*before, *sorted(seed for seed in by_seed if seed not in before))


def _withheld(ours: Sequence[Sequence[Run]], theirs: Sequence[Sequence[Run]]) -> Withheld:
    """A run that diverged has no value: nothing in favour of its variant is claimed."""
    mine, yours = (any(r.status == "diverged" for runs in side for r in runs) for side in (ours, theirs))
    return Withheld(better=mine, worse=yours, equivalent=mine or yours)


def _resolution(runs: Sequence[Run]) -> float:
    """Return the points of one test example; 0 where runs do not say how many there are."""
    counts = {run.summary.get("test_examples") for run in runs if run.status == "complete"}
    count = counts.pop() if len(counts) == 1 else None
    return 100 / count if isinstance(count, int) and count > 0 else 0.0
