"""The rules by which claims are decided: looks, exact boundaries of a group-sequential t test, margin.

A *look* is a number of seeds at which a comparison is judged. At look n the t statistic of the paired
differences is held against a boundary c(n). Under the null hypothesis (normal differences of mean zero, any
variance) the chance to reach one of the boundaries at any look is the level. The looks spend the level by
``F(n) = (1 - r) (n / N)^2``, of the power family (Lan and DeMets 1983, Kim and DeMets 1987). The share r is
kept for one extension of the maximum N.

The null law needs no simulation. Given the sum and the sum of squares of n + 1 differences, their direction
is uniform on a sphere. So the last one is a scaled Beta variable, and the n others are again such a sample.
This gives a one-dimensional recursion for the chance that no boundary was reached before look n, given the t
statistic at n.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from scipy import special, stats

from flsel.arguments import Range, check_settings
from flsel.errors import UserError
from flsel.runner.cost_axes import COST_AXES

FIRST_LOOK = 6
"""The fewest pairs with which an exact sign-flip test could reject at 5 %."""
MOST_SEEDS = 1000
"""The largest maximum: boundaries of more take minutes to compute."""
RESERVE = 0.1
"""Share of the level that is kept for one extension."""
# Points of the t statistic (evenly in asinh t) and of the Beta variable: boundaries to 0.2 %.
_POINTS, _STEPS, _REACH = 701, 200, 9.0


def schedule(maximum: int) -> tuple[int, ...]:
    """Return the looks up to a maximum: 6, then each a quarter more than the one before, then the maximum.

    Args:
        maximum: Most seeds, >= 6.
    """
    looks = [FIRST_LOOK]
    while looks[-1] + looks[-1] // 4 < maximum:
        looks.append(looks[-1] + looks[-1] // 4)
    return tuple(looks) if looks[-1] == maximum else (*looks, maximum)


def extended(first: int, maximum: int) -> tuple[int, ...]:
    """Return the looks of a comparison whose maximum was raised once, from ``first`` to ``maximum``."""
    return (*schedule(first), *(look for look in schedule(maximum) if look > first))


def spent(n: int, maximum: int, reserve: float = RESERVE) -> float:
    """Return the share of the level that boundaries may have used up to n pairs.

    Args:
        n: Pairs, at most twice the maximum.
        maximum: Most seeds as first declared; beyond it the reserve is spent.
        reserve: Share of the level that is kept for an extension, in [0, 1).
    """
    if n <= maximum:
        return (1 - reserve) * (n / maximum) ** 2
    return 1 - reserve + reserve * (n - maximum) / maximum


@functools.lru_cache(maxsize=128)
def boundaries(
    level: float, looks: tuple[int, ...], maximum: int, reserve: float = RESERVE
) -> tuple[float, ...]:
    """Return the one-sided boundary of the t statistic at each look.

    Args:
        level: Chance to reach any of them under the null hypothesis, in (0, 1).
        looks: Numbers of pairs, ascending, from 3 on.
        maximum: Most seeds as first declared, which scales the spending.
        reserve: Share of the level that is kept for an extension, in [0, 1).
    """
    s = np.linspace(-_REACH, _REACH, _POINTS)
    t = np.sinh(s)
    kept = np.ones(_POINTS)  # the chance that no boundary was reached before, given t
    found: list[float] = []
    before = 0.0
    for n in range(2, looks[-1] + 1):
        if n in looks:
            found.append(_boundary(kept, s, t, n, level * (spent(n, maximum, reserve) - before)))
            before = spent(n, maximum, reserve)
        if n < looks[-1]:
            kept = _one_pair_more(kept, s, t, n, found[-1] if n in looks else math.inf)
    return tuple(found)


def _boundary(kept: np.ndarray, s: np.ndarray, t: np.ndarray, n: int, share: float) -> float:
    """Return c with the chance ``share`` that t is above c and no boundary was reached before."""
    density = kept * stats.t.pdf(t, n - 1) * np.cosh(s)
    pieces = (density[1:] + density[:-1]) / 2 * np.diff(s)
    above = np.append(np.cumsum(pieces[::-1])[::-1], 0.0)
    # Above the grid the density is that of t itself.
    above += float(stats.t.sf(t[-1], n - 1))
    return math.sinh(float(np.interp(-math.log(share), -np.log(above), s)))


def _one_pair_more(kept: np.ndarray, s: np.ndarray, t: np.ndarray, n: int, bound: float) -> np.ndarray:
    """Carry the chance from n pairs to n + 1."""
    step = _directions(n)
    theta = np.arctan(t / math.sqrt(n))[:, None]
    last = np.sin(theta) / math.sqrt(n + 1) + np.cos(theta) * math.sqrt(n / (n + 1)) * step
    others = (math.sqrt(n + 1) * np.sin(theta) - last) / np.sqrt(1 - last**2)
    share = np.clip(others / math.sqrt(n), -1 + 1e-16, 1 - 1e-16)
    earlier = math.sqrt(n - 1) * share / np.sqrt(1 - share**2)
    chance = np.interp(np.arcsinh(earlier), s, kept)
    return np.asarray(np.where(earlier < bound, chance, 0.0).mean(axis=1))


@functools.lru_cache(maxsize=256)
def _directions(n: int) -> np.ndarray:
    """Return b at the midpoints of equal probabilities, (b + 1) / 2 ~ Beta((n - 1) / 2, (n - 1) / 2)."""
    steps = (np.arange(_STEPS) + 0.5) / _STEPS
    return np.asarray(2 * special.betaincinv((n - 1) / 2, (n - 1) / 2, steps) - 1)


ACCURACY = "accuracy"
DECIDING = (ACCURACY, *(axis.name for axis in COST_AXES.values() if axis.always))
"""What may decide: the runs' score, by its usual name, or a cost to a target that every run has."""
LEVEL = 0.95
"""Confidence level of intervals."""
ALPHA = 0.05
"""Chance that any claim of a comparison is false, of whatever kind and at whatever look it stops."""
DEFAULT_MAX_SEEDS = 30
GIVE_UP_FROM = 8
"""The first look at which a claim may be given up."""
FEWEST_SEEDS = 5
"""Pairs below which one look claims nothing: with fewer, coverage rests on normality alone."""


@dataclass(frozen=True)
class Design:
    """The rules by which every claim of a comparison is decided.

    Attributes:
        comparisons: Claims of the family, >= 1.
        maximum: Most seeds, >= 6; of one look its seeds, >= 2.
        margin: Half-width of practical equivalence, in units of the differences, > 0; None claims none.
        give_up: A claim is given up where the chance to decide it by the maximum is below this, in [0, 1).
        first_maximum: The maximum as first declared, where it was raised since; None where it was not.
        alpha: Chance that any claim of the family is false, in (0, 1).
        once: Whether there is one look, at the maximum, as with a fixed number of seeds.
        earlier_margins: Margins that held before the present one, each behind the last look that it judged.

    Raises:
        UserError: If a value is out of range.
    """

    comparisons: Annotated[int, Range(1)]
    maximum: Annotated[int, Range(2)] = 30
    margin: Annotated[float | None, Range(above=0)] = None
    give_up: Annotated[float, Range(0, below=1)] = 0.05
    first_maximum: Annotated[int | None, Range(FIRST_LOOK)] = None
    alpha: Annotated[float, Range(above=0, below=1)] = ALPHA
    once: bool = False
    earlier_margins: tuple[tuple[int, float | None], ...] = ()

    def __post_init__(self) -> None:
        check_settings(self)
        if self.maximum < FIRST_LOOK and not self.once:
            raise UserError(f"maximum must be a whole number >= {FIRST_LOOK}, got {self.maximum}.")

    @classmethod
    def fixed(cls, n: int, comparisons: int, margin: float | None = None, alpha: float = ALPHA) -> Design:
        """Return the rules of a fixed number of seeds, >= 2: one look."""
        return cls(comparisons, n, margin, alpha=alpha, once=True)

    def margin_at(self, n: int) -> float | None:
        """Return the margin by which a look is judged; a new one judges later looks only."""
        return next((margin for until, margin in self.earlier_margins if n <= until), self.margin)

    @property
    def fewest(self) -> int:
        """The fewest pairs that carry a claim."""
        return FEWEST_SEEDS if self.once else FIRST_LOOK

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds at which claims are judged."""
        if self.once:
            return (self.maximum,)
        if self.first_maximum is None:
            return schedule(self.maximum)
        return extended(self.first_maximum, self.maximum)

    @cached_property
    def outer(self) -> dict[int, float]:
        """Boundaries by look of the interval that decides the direction: level alpha / 2m on each side."""
        return self._boundaries(self.alpha / (2 * self.comparisons))

    @cached_property
    def inner(self) -> dict[int, float]:
        """Boundaries by look of the interval that decides equivalence: level alpha / m on each side."""
        return self._boundaries(self.alpha / self.comparisons)

    def _boundaries(self, level: float) -> dict[int, float]:
        if self.once:
            return {self.maximum: float(stats.t.ppf(1 - level, self.maximum - 1))}
        found = boundaries(level, self.looks, self.first_maximum or self.maximum)
        return dict(zip(self.looks, found, strict=True))
