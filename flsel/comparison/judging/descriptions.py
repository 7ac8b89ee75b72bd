"""Beside the tests: chances under a flat prior, and the winner against the runner-up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from scipy import stats

from flsel.comparison.judging import formatting
from flsel.comparison.judging.claim_words import interval_ends, margin
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.designs import ACCURACY
from flsel.comparison.judging.estimates import compare_pairs, flat
from flsel.comparison.judging.summaries import Analysis
from flsel.rng import generator

_DRAWS = 20_000


def chances_to_be_best(values: np.ndarray) -> np.ndarray:
    """Return the chance of each variant to have the largest mean, ``[k]``, under a flat prior.

    The means' posterior is a multivariate t law with the seeds' covariance and one freedom less than seeds.

    Args:
        values: ``[n, k]``, a row for each seed that all variants have, n >= 2; larger is better.
    """
    n = len(values)
    rng = generator(0, "posterior", n)
    normal = rng.standard_normal((_DRAWS, n)) @ (values - values.mean(axis=0)) / math.sqrt(n * (n - 1))
    means = values.mean(axis=0) + normal * np.sqrt((n - 1) / rng.chisquare(n - 1, (_DRAWS, 1)))
    best = means >= means.max(axis=1, keepdims=True)
    return np.asarray((best / best.sum(axis=1, keepdims=True)).mean(axis=0))


def chance_above(differences: np.ndarray, threshold: float) -> float:
    """Return the chance that a mean of differences that vary is above a threshold, under a flat prior."""
    n, mean, sd = len(differences), float(differences.mean()), float(differences.std(ddof=1))
    return float(stats.t.cdf((mean - threshold) * math.sqrt(n) / sd, n - 1))


def describe(analysis: Analysis) -> Iterator[str]:
    """Yield what describes the only scenario beside its tests; nothing of several, or below five seeds."""
    if len(analysis.scenarios) > 1 or not analysis.claims:
        return
    columns = _gains(analysis, analysis.scenarios[0])
    seeds = [seed for seed in next(iter(columns.values()), {}) if all(seed in c for c in columns.values())]
    if len(seeds) < analysis.claims[0].design.fewest or len(columns) < 2:
        return
    table = np.array([[columns[v][seed] for v in columns] for seed in seeds])
    order = np.argsort(-table.mean(axis=0))
    yield from _chances(analysis, list(columns), table, order)
    if len(columns) > 2:
        yield _runner_up(analysis, list(columns), table, order)


def _chances(analysis: Analysis, names: Sequence[str], table: np.ndarray, order: np.ndarray) -> Iterator[str]:
    known = not any(flat(table[:, a] - table[:, b]) for a, b in combinations(range(len(names)), 2))
    if known:  # differences that are one number show no spread
        best = chances_to_be_best(table)
        listed = ", ".join(f"{names[at]} {formatting.share(best[at])}" for at in order)
        yield (
            f"Chance to have the best {analysis.options.score.words}{_without(analysis)} (exploratory, flat "
            f"prior, {len(table)} common seeds): {listed}."
        )
    beyond: Mapping[str, str] = {
        claim.variant: formatting.share(chance_above(claim.lower, claim.design.margin))
        for claim in analysis.claims
        if claim.measure == analysis.deciding and claim.kind == "mean" and claim.paired and not claim.late
        if not claim.diverged.equivalent
        if claim.design.margin is not None and len(claim.lower) > 1 and not claim.same(claim.n)
    }
    if beyond:
        claim = next(c for c in analysis.claims if c.variant in beyond and c.measure == analysis.deciding)
        yield (
            f"Chance to be better than {analysis.options.baseline} by more than "
            f"{margin(claim.deciding, claim.design)} (exploratory, flat prior): "
            f"{', '.join(f'{name} {chance}' for name, chance in beyond.items())}."
        )


def _runner_up(analysis: Analysis, names: Sequence[str], table: np.ndarray, order: np.ndarray) -> str:
    """Compare the variant with the best mean with the next, corrected for all pairs of variants."""
    first, second = order[:2]
    pairs = len(names) * (len(names) - 1) // 2
    alpha = (1 - analysis.options.level) / pairs
    compared = compare_pairs(table[:, first], table[:, second], level=1 - alpha)
    found, score = compared.difference, analysis.options.score
    if not any(compared.values):
        return (
            f"{names[first]} and {names[second]} have the best {score.words}{_without(analysis)}, the same "
            f"under each of the {len(table)} common seeds."
        )
    sure = "significantly better than" if compared.p <= alpha else "not significantly better than"
    if analysis.options.until_decided or analysis.options.changes:
        sure = "ahead of"  # how many seeds there are, or what is compared, was chosen by the results
    unit, level = score.unit and f" {score.unit}", 100 * analysis.options.level
    interval = ", the same under each"
    if not math.isnan(found.low):
        ends = " to ".join(interval_ends(Deciding(ACCURACY, 1, score=score), found.low, found.high))
        interval = f", {level:g} % interval {ends} (corrected for {pairs} pairs of variants)"
    return (
        f"{names[first]} has the best {score.words}{_without(analysis)}, and is {sure} the next, "
        f"{names[second]}: {formatting.gain(found.value, score)}{unit}{interval}, over the {len(table)} "
        "common seeds."
    )


def _diverged(analysis: Analysis) -> list[str]:
    """Return the variants with a diverged run: no mean is known that counts it."""
    return [
        v for v in analysis.variants if any((r.variant, r.status) == (v, "diverged") for r in analysis.runs)
    ]


def _without(analysis: Analysis) -> str:
    lost = _diverged(analysis)
    return f" (without {', '.join(lost)}, of which runs diverged)" if lost else ""


def _gains(analysis: Analysis, scenario: str) -> dict[str, dict[int, float]]:
    """Return scores as gains in a scenario, by variant and seed, of the variants that have some."""
    gains = analysis.options.score.gains
    lost = _diverged(analysis)
    found = {v: analysis.summary(v, scenario, analysis.main) for v in analysis.variants if v not in lost}
    return {
        variant: {seed: gains * value for seed, value in summary.values.items()}
        for variant, summary in found.items()
        if summary is not None
    }
