"""Decisions about paired differences, look by look: better, worse, equivalent, open, or undecided yet.

:func:`judge_looks` judges many samples at once, for simulations. :func:`decide` judges one. Both depend on
the ordered differences alone, so a comparison that is judged again decides the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from scipy import special

from flsel.comparison.judging.designs import GIVE_UP_FROM, Design
from flsel.comparison.judging.estimates import even, interval, moments

Claim = Literal["better", "worse", "equivalent", "open", "undecided"]
_CLAIMS: tuple[Claim, ...] = ("better", "worse", "equivalent", "open", "undecided")
_BETTER, _WORSE, _EQUIVALENT, _OPEN, _UNDECIDED = range(5)


@dataclass(frozen=True)
class Withheld:
    """Claims that are not made, since diverged runs forbid them.

    Withholding a claim only removes errors.

    Attributes:
        better: Seeds under which the variant diverged and the baseline did not: it is not called better.
        worse: Seeds under which the baseline diverged and the variant did not: it is not called worse.
        equivalent: Seeds under which a run diverged: the two are not called equivalent.
    """

    better: int = 0
    worse: int = 0
    equivalent: int = 0


@dataclass(frozen=True)
class Look:
    """Result of one look.

    Attributes:
        n: Pairs.
        mean: Mean difference; positive is better for the variant. Where runs are late, over the pairs in
            which all arrive; NaN where there are fewer than two.
        sd: Standard deviation, likewise.
        low: Lower end of the repeated interval that decides the direction, over the lower ends of the pairs.
        high: Its upper end, over their upper ends.
        inner_low: Lower end of the interval that decides equivalence.
        inner_high: Its upper end.
        hope: Chance that the claim is decided by the maximum, given what was seen.
        least: Mean of the lower ends of the pairs.
        most: Mean of the upper ends.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float
    inner_low: float
    inner_high: float
    hope: float
    least: float
    most: float


_NUMBERS = [part.name for part in fields(Look)[1:]]


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
    given_up: bool = False
    within_margin: bool = False
    beyond_margin: bool = False
    looks: tuple[Look, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether the claim is better, worse or equivalent."""
        return self.claim in ("better", "worse", "equivalent")


@dataclass(frozen=True)
class Judged:
    """Samples judged at every look they reach.

    Attributes:
        looks: Numbers of pairs.
        numbers: What :class:`Look` has behind them, by name, each ``[R, looks]``.
        claim: What is decided, in the order of claims, ``[R, looks]``.
    """

    looks: tuple[int, ...]
    numbers: Mapping[str, np.ndarray]
    claim: np.ndarray

    def stops(self) -> np.ndarray:
        """Return the index of the look that ends each sample, ``[R]``; the last one where none does."""
        ended = self.claim != _UNDECIDED
        return np.where(ended.any(axis=1), ended.argmax(axis=1), len(self.looks) - 1)


def judge_looks(
    differences: np.ndarray,
    design: Design,
    *,
    upper: np.ndarray | None = None,
    resolution: float = 0.0,
    withheld: Withheld | None = None,
) -> Judged:
    """Judge samples of differences at every look that they reach.

    Args:
        differences: ``[R, n]`` in the order of the seeds; positive is better for the variant. Where a pair
            bounds its difference only, the lower end, which may be minus infinity.
        design: The rules.
        upper: Upper ends, ``[R, n]``; None where every difference is known.
        resolution: Resolution of one difference, such as one test example; 0 if unknown.
        withheld: Claims that are not made, whatever the differences show.
    """
    looks = tuple(look for look in design.looks if look <= differences.shape[1])
    withheld = withheld or Withheld()
    found = [
        _look(differences[:, :n], None if upper is None else upper[:, :n], design, resolution, withheld)
        for n in looks
    ]
    if not found:
        return Judged((), {}, np.zeros((len(differences), 0)))
    *numbers, claim = (np.stack(columns, axis=1) for columns in zip(*found, strict=True))
    return Judged(looks, dict(zip(_NUMBERS, numbers, strict=True)), claim)


def decide(
    differences: np.ndarray,
    design: Design,
    *,
    upper: np.ndarray | None = None,
    resolution: float = 0.0,
    withheld: Withheld | None = None,
) -> Decision:
    """Decide one claim, from one sample ``[n]`` in the order in which its pairs were executed.

    The arguments are those of :func:`judge_looks`.
    """
    values = np.asarray(differences, dtype=float)[: design.maximum]
    ends = None if upper is None else np.asarray(upper, dtype=float)[None, : design.maximum]
    judged = judge_looks(values[None], design, upper=ends, resolution=resolution, withheld=withheld)
    if not judged.looks:
        return Decision("undecided", len(values))
    last = int(judged.stops()[0])
    looks = tuple(
        Look(n, **{name: float(numbers[0, at]) for name, numbers in judged.numbers.items()})
        for at, n in enumerate(judged.looks[: last + 1])
    )
    end = looks[-1]
    margin = design.margin_at(end.n) or 0.0
    claim = _CLAIMS[int(judged.claim[0, last])]
    return Decision(
        claim=claim,
        n=end.n if claim != "undecided" else len(values),
        given_up=claim == "open" and end.n < design.maximum,
        within_margin=-margin < end.inner_low and end.inner_high < margin,
        beyond_margin=margin > 0 and (end.low > margin or end.high < -margin),
        looks=looks,
    )


def _look(
    below: np.ndarray, above: np.ndarray | None, design: Design, resolution: float, withheld: Withheld
) -> tuple[np.ndarray, ...]:
    n, lower = below.shape[1], moments(below, resolution)
    above, upper = (below, lower) if above is None else (above, moments(above, resolution))
    low, high = interval(*lower, n, design.outer[n])[0], interval(*upper, n, design.outer[n])[1]
    inner_low = interval(*lower, n, design.inner[n])[0]
    inner_high = interval(*upper, n, design.inner[n])[1]
    unequal = ~(np.isfinite(below) & np.isfinite(above)).all(axis=1) | bool(withheld.equivalent)
    mean, sd = _described(below, above)
    hope = _hope(mean, sd, n, design, unequal)
    margin = design.margin_at(n) or 0.0
    # Differences that are all one number have no spread: they decide where the exact sign test does.
    sure, many = 2.0 ** (1 - n) <= 2 * special.stdtr(n - 1, -design.outer[n]), n >= design.fewest
    decided = [
        (~even(below) | sure) & (low > 0) & (many and not withheld.better),
        (~even(above) | sure) & (high < 0) & (many and not withheld.worse),
        (-margin < inner_low) & (inner_high < margin) & ~unequal & (many and margin > 0),
        np.full(len(mean), n == design.maximum)
        | ((n >= GIVE_UP_FROM) & (n < design.maximum) & (hope < design.give_up)),
    ]
    claim = np.select(decided, range(_UNDECIDED), _UNDECIDED)
    return mean, sd, low, high, inner_low, inner_high, hope, lower[0], upper[0], claim


def _described(lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation over the pairs whose difference is known, ``[R]``; NaN below two."""
    known = np.isfinite(lower) & np.isfinite(upper)
    if known.all():
        return lower.mean(axis=1), np.where(even(lower), 0.0, lower.std(axis=1, ddof=1))
    mean, sd = np.full(len(lower), math.nan), np.full(len(lower), math.nan)
    for row, use in enumerate(known):
        if use.sum() > 1:
            mean[row], sd[row] = lower[row, use].mean(), lower[row, use].std(ddof=1)
    return mean, sd


def _hope(mean: np.ndarray, sd: np.ndarray, n: int, design: Design, unequal: np.ndarray) -> np.ndarray:
    """Return the predictive chance (flat prior) that plain t statistics decide at the maximum.

    Where equivalence is withheld (``unequal``) only a direction can be decided, and nothing where all
    differences are zero. Fewer than two known differences predict nothing.
    """
    last = design.maximum
    direction = design.outer[last] * sd / math.sqrt(last)
    inner = np.full_like(sd, -1.0)
    if design.margin is not None:
        inner = np.where(unequal, -1.0, design.margin - design.inner[last] * sd / math.sqrt(last))
    spread = sd * math.sqrt(max(0.0, 1 / n - 1 / last))
    # What is certain, such as all at the last look, is decided without the law.
    rows, chance = (spread > 0) & (inner < direction) & ~np.isnan(mean), np.ones_like(sd)
    at, outer, within, scale = (values[rows] for values in (mean, direction, inner, spread))
    cdf = functools.partial(special.stdtr, n - 1)
    equivalent = np.where(within > 0, cdf((within - at) / scale) - cdf((-within - at) / scale), 0.0)
    chance[rows] = cdf(-(outer - at) / scale) + cdf(-(outer + at) / scale) + equivalent
    hopeless = (unequal | (design.margin is None)) & (sd == 0) & (mean == 0)
    return np.where(hopeless, 0.0, chance)
