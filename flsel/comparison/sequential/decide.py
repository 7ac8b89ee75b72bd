"""Decisions about paired differences, look by look: better, worse, equivalent, open, or undecided yet.

:func:`judge_looks` judges many samples at once, for simulations. :func:`decide` judges one. Both depend on
the ordered differences alone, so a comparison that is judged again decides the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from flsel.comparison.sequential.design import GIVE_UP_FROM, Design

Claim = Literal["better", "worse", "equivalent", "open", "undecided"]
_CLAIMS: tuple[Claim, ...] = ("better", "worse", "equivalent", "open", "undecided")
_BETTER, _WORSE, _EQUIVALENT, _OPEN, _UNDECIDED = range(5)


Gate = bool | np.ndarray


@dataclass(frozen=True)
class Withheld:
    """Claims that are not made: diverged runs and runs that did not reach the target forbid them.

    Each is one bool for all looks, or ``[..., n]``, whose element k - 1 is for a look at the first k pairs.
    Withholding a claim only removes errors.

    Attributes:
        better: The claim that the variant is better.
        worse: The claim that it is worse.
        equivalent: The claim that it is equivalent.
    """

    better: Gate = False
    worse: Gate = False
    equivalent: Gate = False

    def at(self, n: int) -> Withheld:
        """Return what is withheld at a look at n pairs, >= 1."""
        gates = (self.better, self.worse, self.equivalent)
        return Withheld(*(gate if isinstance(gate, bool) else gate[..., n - 1] for gate in gates))

    def __or__(self, other: Withheld) -> Withheld:
        return Withheld(
            self.better | other.better, self.worse | other.worse, self.equivalent | other.equivalent
        )


def withheld_by_arrival(ours: np.ndarray, theirs: np.ndarray, runs: int = 1) -> Withheld:
    """Return the claims about a cost to a target that runs forbid which did not reach it.

    Equivalent needs that every run arrived. Better needs that the variant arrived at least as often as the
    baseline, and worse that it arrived at most as often.

    Args:
        ours: In each pair the runs of the variant that arrived, ``[..., n]``.
        theirs: Those of the baseline.
        runs: Runs of each side in a pair, >= 1: one for each scenario of a mean.
    """
    mine, yours = ours.cumsum(axis=-1), theirs.cumsum(axis=-1)
    every = runs * np.arange(1, ours.shape[-1] + 1)
    return Withheld(better=mine < yours, worse=mine > yours, equivalent=(mine < every) | (yours < every))


@dataclass(frozen=True)
class Look:
    """Result of one look.

    Attributes:
        n: Pairs.
        mean: Mean difference; positive is better for the variant.
        sd: Standard deviation.
        low: Lower end of the repeated interval that decides the direction.
        high: Its upper end.
        inner_low: Lower end of the interval that decides equivalence.
        inner_high: Its upper end.
        hope: Chance that the claim is decided by the maximum, given what was seen.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float
    inner_low: float
    inner_high: float
    hope: float


@dataclass(frozen=True)
class Decision:
    """Result of one claim.

    Attributes:
        claim: ``better``, ``worse``, ``equivalent``, ``open`` (not decided by the maximum, or given up) or
            ``undecided`` (more seeds are needed).
        n: Pairs at the look that ended it, or all there are.
        given_up: Whether it was given up before the maximum.
        within_margin: Whether the interval that decides equivalence lies within the margin.
        beyond_margin: Whether the whole repeated interval lies beyond the margin.
        looks: What every look found, up to the one that ended it.
    """

    claim: Claim
    n: int
    given_up: bool
    within_margin: bool
    beyond_margin: bool
    looks: tuple[Look, ...]

    @property
    def decided(self) -> bool:
        """Whether the claim is better, worse or equivalent."""
        return self.claim in ("better", "worse", "equivalent")


@dataclass(frozen=True)
class Judged:
    """Samples judged at every look they reach; arrays are ``[R, looks]``, integers in the order of claims."""

    looks: tuple[int, ...]
    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    inner_low: np.ndarray
    inner_high: np.ndarray
    hope: np.ndarray
    claim: np.ndarray

    def stops(self) -> np.ndarray:
        """Return the index of the look that ends each sample, ``[R]``; the last one where none does."""
        ended = self.claim != _UNDECIDED
        return np.where(ended.any(axis=1), ended.argmax(axis=1), len(self.looks) - 1)


def judge_looks(
    differences: np.ndarray, design: Design, *, resolution: float = 0.0, withheld: Withheld | None = None
) -> Judged:
    """Judge samples of differences at every look that they reach.

    Args:
        differences: ``[R, n]`` in the order of the seeds; positive is better for the variant.
        design: The rules.
        resolution: Resolution of one difference, such as one test example; 0 if unknown.
        withheld: Claims that are not made, whatever the differences show.
    """
    looks = tuple(look for look in design.looks if look <= differences.shape[1])
    withheld = withheld or Withheld()
    found = [_look(differences[:, :n], design, n, resolution, withheld.at(n)) for n in looks]
    if not found:
        empty = np.zeros((len(differences), 0))
        return Judged((), *(empty,) * 8)
    return Judged(looks, *(np.stack(columns, axis=1) for columns in zip(*found, strict=True)))


def decide(
    differences: np.ndarray, design: Design, *, resolution: float = 0.0, withheld: Withheld | None = None
) -> Decision:
    """Decide one claim.

    Args:
        differences: ``[n]``, one a pair, in the order in which the pairs were executed.
        design: The rules.
        resolution: Resolution of one difference; 0 if unknown.
        withheld: Claims that are not made, whatever the differences show.
    """
    values = np.asarray(differences, dtype=float)[: design.maximum]
    judged = judge_looks(values[None], design, resolution=resolution, withheld=withheld)
    if not judged.looks:
        return Decision("undecided", len(values), False, False, False, ())
    last = int(judged.stops()[0])
    looks = tuple(
        Look(n, *(float(a[0, at]) for a in (
            judged.mean, judged.sd, judged.low, judged.high, judged.inner_low, judged.inner_high, judged.hope,
        )))
        for at, n in enumerate(judged.looks[: last + 1])
    )  # fmt: skip
    end, margin = looks[-1], design.margin or 0.0
    claim = _CLAIMS[int(judged.claim[0, last])]
    return Decision(
        claim=claim,
        n=end.n if claim != "undecided" else len(values),
        given_up=claim == "open" and end.n < design.maximum,
        within_margin=-margin < end.inner_low and end.inner_high < margin,
        beyond_margin=design.margin is not None and (end.low > margin or end.high < -margin),
        looks=looks,
    )


def _look(
    x: np.ndarray, design: Design, n: int, resolution: float, withheld: Withheld
) -> tuple[np.ndarray, ...]:
    flat = np.ptp(x, axis=1) <= 1e-12 * np.abs(x).max(axis=1)
    mean, sd = x.mean(axis=1), np.where(flat, 0.0, x.std(axis=1, ddof=1))
    skew = np.zeros(len(x))
    skew[~flat] = stats.skew(x[~flat], axis=1, bias=False)
    error = np.maximum(sd, resolution / math.sqrt(6)) / math.sqrt(n)
    low, high = interval(mean, error, skew, n, design.outer[n])
    inner_low, inner_high = interval(mean, error, skew, n, design.inner[n])
    hope = _hope(mean, sd, n, design, withheld.equivalent)
    margin, known = design.margin or 0.0, error > 0
    decided = [
        known & (low > 0) & np.logical_not(withheld.better),
        known & (high < 0) & np.logical_not(withheld.worse),
        known & (-margin < inner_low) & (inner_high < margin) & np.logical_not(withheld.equivalent),
        np.full(len(x), n == design.maximum)
        | ((n >= GIVE_UP_FROM) & (n < design.maximum) & (hope < design.give_up)),
    ]
    claim = np.select(decided, range(_UNDECIDED), _UNDECIDED)
    return mean, sd, low, high, inner_low, inner_high, hope, claim


def interval(
    mean: np.ndarray, error: np.ndarray, skew: np.ndarray, n: int, bound: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the interval of a mean, longer toward the heavier tail (Johnson 1978).

    Args:
        mean: Means ``[R]``.
        error: Standard errors ``[R]``.
        skew: Sample skewness ``[R]``.
        n: Values in each mean.
        bound: Boundary in the place of Student's quantile.
    """
    longer = np.minimum(bound, np.abs(skew) * (1 + 2 * bound**2) / (6 * math.sqrt(n)))
    return mean - error * (bound + longer * (skew < 0)), mean + error * (bound + longer * (skew > 0))


def _hope(mean: np.ndarray, sd: np.ndarray, n: int, design: Design, unequal: Gate) -> np.ndarray:
    """Return the predictive chance (flat prior) that plain t statistics decide at the maximum.

    Where equivalence is withheld (``unequal``) only a direction can be decided, and nothing where all
    differences are zero, as where no run reaches the target.
    """
    last = design.maximum
    direction = design.outer[last] * sd / math.sqrt(last)
    inner = np.full_like(sd, -1.0)
    if design.margin is not None:
        inner = np.where(unequal, -1.0, design.margin - design.inner[last] * sd / math.sqrt(last))
    spread = sd * math.sqrt(max(0.0, 1 / n - 1 / last))
    certain = (spread == 0) | (inner >= direction)
    scale = np.where(certain, 1.0, spread)
    law = stats.t(n - 1)
    chance = law.cdf(-(direction - mean) / scale) + law.cdf(-(direction + mean) / scale)
    chance += np.where(inner > 0, law.cdf((inner - mean) / scale) - law.cdf((-inner - mean) / scale), 0.0)
    hopeless = unequal & (sd == 0) & (mean == 0)
    return np.where(hopeless, 0.0, np.where(certain, 1.0, chance))
