"""Variants over several scenarios: ranks, Friedman's test, the critical difference, performance profiles.

After Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7, 2006, and Agarwal et
al., "Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from flsel.comparison.judging.estimates import LEVEL


@dataclass(frozen=True)
class Ranking:
    """Variants ranked in every scenario.

    Attributes:
        mean_ranks: Mean rank of each of the k variants, 1 is best, ``[k]``.
        statistic: Friedman's chi-squared; NaN below three variants, for which there is no such test.
        p: Its p-value.
        critical_difference: Mean ranks that differ by less do not differ significantly (Nemenyi, 5 %).
        scenarios: Number of scenarios.
    """

    mean_ranks: np.ndarray
    statistic: float
    p: float
    critical_difference: float
    scenarios: int

    @property
    def can_decide(self) -> bool:
        """Rank variants over scenarios, and test whether the ranks can show a best variant.

        With two variants Nemenyi's test errs in 13 % of comparisons over four scenarios. The mean ranks
        of the best
        and the next of k variants differ by k / 2 at most.
        """
        return len(self.mean_ranks) > 2 and self.critical_difference < len(self.mean_ranks) / 2

    def groups(self) -> list[tuple[int, int]]:
        """Return the widest groups of neighbours in rank, best first, without a significant difference.

        Returns:
            First and last place in the order of mean ranks, of runs with two members or more.
        """
        ordered = np.sort(self.mean_ranks)
        found: list[tuple[int, int]] = []
        for first in range(len(ordered)):
            last = int(np.searchsorted(ordered, ordered[first] + self.critical_difference, side="right")) - 1
            if last > first and (not found or last > found[-1][1]):
                found.append((first, last))
        return found


def rank(scores: np.ndarray) -> Ranking:
    """Rank variants.

    Args:
        scores: ``[scenarios, k]``, larger is better, finite, with at least two of each.
    """
    scenarios, k = scores.shape
    ranks = stats.rankdata(-scores, axis=1)
    statistic, p = math.nan, math.nan
    if k > 2 and not np.all(ranks == ranks[:, :1]):
        statistic, p = map(float, stats.friedmanchisquare(*scores.T))
    return Ranking(ranks.mean(axis=0), statistic, p, critical_difference(k, scenarios), scenarios)


def critical_difference(k: int, scenarios: int) -> float:
    """Return Nemenyi's critical difference of mean ranks at 5 %: q sqrt(k (k + 1) / (6 scenarios))."""
    q = float(stats.studentized_range.ppf(LEVEL, k, np.inf)) / math.sqrt(2)
    return q * math.sqrt(k * (k + 1) / (6 * scenarios))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of runs whose score is above each threshold.

    Args:
        scores: ``[n]``.
        thresholds: ``[m]``.
    """
    return np.asarray((scores[:, None] > thresholds[None, :]).mean(axis=0))
