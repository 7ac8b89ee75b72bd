"""Looks and exact boundaries of a group-sequential t test.

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

import numpy as np
from scipy import special, stats

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
