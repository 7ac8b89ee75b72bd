"""Variants over several scenarios: mean ranks with seeds as blocks, and performance profiles.

The scenarios of one seed share its initial model and much of its noise, so they are no independent blocks.
The seeds are. Under the hypothesis that variants do not differ, their results under one seed, in all
scenarios together, could be exchanged. So the law of the mean ranks is that over exchanges of variants within
seeds.

After Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7, 2006, whose blocks are
data sets, and Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", NeurIPS
2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from flsel.rng import generator

_EXCHANGES = 4_999


@dataclass(frozen=True)
class Ranking:
    """Variants ranked in every scenario and under every seed.

    Attributes:
        mean_ranks: Mean rank of each of the k variants, 1 is best, ``[k]``.
        p: P-value of the test that all variants have the same mean rank; NaN of one seed.
        critical_difference: Mean ranks that differ by less do not differ significantly; infinite where no
            difference could.
        scenarios: Number of scenarios.
        seeds: Number of seeds that all variants have in all scenarios.
        level: Confidence level.
        described: Whether ranks only describe, as where claims are decided look by look.
    """

    mean_ranks: np.ndarray
    p: float
    critical_difference: float
    scenarios: int
    seeds: int
    level: float = 0.95
    described: bool = False

    @property
    def can_decide(self) -> bool:
        """Whether the ranks could show a best variant."""
        return not self.described and math.isfinite(self.critical_difference)


def rank(scores: np.ndarray, level: float = 0.95, *, described: bool = False) -> Ranking:
    """Rank variants.

    Args:
        scores: ``[seeds, scenarios, k]``, larger is better, of a run that diverged minus infinity; at least
            two variants.
        level: Confidence level.
        described: Whether ranks only describe.
    """
    seeds, scenarios, k = scores.shape
    by_seed = stats.rankdata(-scores, axis=2).mean(axis=1)  # [seeds, k]
    mean = by_seed.mean(axis=0)
    if seeds < 2:
        return Ranking(mean, math.nan, math.inf, scenarios, seeds, level, described)
    rng = generator(0, "ranks", seeds, k)
    drawn = rng.permuted(np.broadcast_to(by_seed, (_EXCHANGES, seeds, k)), axis=2).mean(axis=1)
    spread, drawn_spread = mean.var(), drawn.var(axis=1)
    p = (1 + int((drawn_spread >= spread - 1e-12).sum())) / (1 + _EXCHANGES)
    # The range of mean ranks that exchanges seldom exceed; infinite if it cannot be exceeded.
    critical = float(np.sort(np.ptp(drawn, axis=1))[math.ceil(level * (_EXCHANGES + 1)) - 1])
    critical = critical if critical < np.ptp(by_seed, axis=1).mean() - 1e-12 else math.inf
    return Ranking(mean, p, critical, scenarios, seeds, level, described)


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of runs whose score is above each threshold."""
    return np.asarray((scores[:, None] > thresholds[None, :]).mean(axis=0))
