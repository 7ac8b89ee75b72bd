"""What limits a comparison's claims: seeds, pairs, targets, tuning, missing runs; and what describes them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from scipy import stats

from flsel.comparison.judging import formatting
from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.judging.claim_words import interval_ends, margin
from flsel.comparison.judging.deciding import Deciding, budget_of
from flsel.comparison.judging.decisions import decide
from flsel.comparison.judging.designs import ACCURACY, Design
from flsel.comparison.judging.estimates import flat, untied
from flsel.comparison.judging.procedure import procedure_notes
from flsel.local.agreement import RUN_AGAIN
from flsel.rng import generator
from flsel.runner.cost_axes import COST_AXES


def notes(analysis: Analysis) -> list[str]:
    """Return what limits the claims: seeds, pairing, missing runs, fairness; one sentence each."""
    return [
        *procedure_notes(analysis),
        *describe(analysis),
        *_about_changes(analysis),
        *_about_length(analysis),
        *_about_targets(analysis),
        *_about_pairs(analysis),
        *_about_tuning(analysis),
        *_about_checks(analysis),
        *_about_missing(analysis),
    ]


def _about_changes(analysis: Analysis) -> Iterator[str]:
    changes = analysis.options.changes
    if changes:
        listed = "; ".join(change.words(analysis.options.score) for change in changes)
        touched = sum(bool(claim.exploratory) for claim in analysis.claims)
        depend = "depends on that and is" if touched == 1 else "depend on that and are"
        some = f"{touched} of {formatting.count(len(analysis.claims), 'claim')} {depend} exploratory."
        some = some if touched else "No claim depends on that."
        yield f"Changed when results could be seen: {listed}. {some}"
    if again := analysis.options.judged_again:
        yield (
            f"Runs of this comparison were judged again by their folders: {'; '.join(again)}. Claims here "
            "are of what was declared."
        )


def _about_length(analysis: Analysis) -> Iterator[str]:
    last, asked = analysis.options.last, analysis.options.asked
    if last < asked:
        yield (
            f"Runs are short, so means are of {formatting.count(last, 'evaluation')} and not of {asked}: "
            "half of what the shortest run has."
        )
    done = [run.summary for run in analysis.runs if run.status == "complete"]
    early = sum(ended["rounds"] < ended["planned_rounds"] for ended in done)
    cost = analysis.options.cost
    runs = [run for run in analysis.runs if run.status == "complete" and cost in run.columns]
    most = [(run.columns[cost][-1], budget_of(run.settings, cost)) for run in runs]
    limited = [(spent, budget) for spent, budget in most if budget is not None]
    if limited:
        short = sum(spent < budget for spent, budget in limited)
        axis = COST_AXES[cost]
        yield (
            f"Every run ends when it has spent {formatting.number(max(b for _, b in limited), axis.unit)} "
            f"({axis.label})."
            + (f" {short} of {len(limited)} ended before: give them more rounds." if short else "")
        )
    elif early:
        yield (
            f"{early} of {len(done)} runs ended before their last round: at a target, by a callback, or by a "
            "budget. Their final values and totals are of other rounds. Costs to a target can be compared."
        )


def _about_targets(analysis: Analysis) -> Iterator[str]:
    if analysis.target is None:
        goal = "target accuracy" if analysis.options.score.is_share else "target"
        yield f"There is no {goal}, so no cost to reach one. Give --target."
    elif analysis.target.chosen_after:
        yield (
            f"The target of {analysis.target.shown} was chosen after the runs: costs to it are "
            "exploratory. Give --target beforehand."
        )
    if analysis.options.cost == "seconds":
        yield (
            "Seconds are wall time: other work on the machine lengthens them, and runs of small models that "
            "are trained in one stack share them. Simulated seconds depend on neither."
        )


def _about_pairs(analysis: Analysis) -> Iterator[str]:
    problems = [problem for pairs in analysis.pairs.values() for problem in pairs.problems]
    yield from (f"{problem}." for problem in problems)
    used = [pairs for pairs in analysis.pairs.values() if pairs.ours]
    if used and all(pairs.verified for pairs in used):
        yield (
            "Pairs are verified: under one seed all variants had the same partition, holdouts, availability "
            "and initial model."
        )
    elif used and not problems:
        yield "Runs are paired by equal settings and seeds. They keep no fingerprints that would verify it."


def _about_tuning(analysis: Analysis) -> Iterator[str]:
    judged = {run.seed for run in analysis.runs if run.status == "complete"}
    for variant, tuning in analysis.tuned.items():
        shared = sorted(judged & set(tuning.seeds))
        if shared:
            yield (
                f"{variant} was tuned on seeds {', '.join(map(str, shared))} ({tuning.sweep}), which judge "
                "it here: its advantage is biased upward. Compare under other seeds."
            )
    budgets = {variant: tuning.trials * tuning.rounds for variant, tuning in analysis.tuned.items()}
    untuned = [variant for variant in analysis.variants if variant not in budgets]
    if budgets and untuned:
        yield f"Tuned: {', '.join(budgets)}. Not tuned: {', '.join(untuned)}."
    if len(set(budgets.values())) > 1:
        listed = ", ".join(f"{variant} {rounds:,} rounds" for variant, rounds in budgets.items())
        yield f"Tuning budgets differ: {listed}."


def _about_checks(analysis: Analysis) -> Iterator[str]:
    done = [run.summary for run in analysis.runs if run.status == "complete"]
    found = [summary["self_check"]["train"] for summary in done if "train" in summary["self_check"]]
    late = [check["round"] for check in found if check["late"]]
    if found:
        yield (
            f"Sequential trained {len(found)} of {len(done)} runs, since the fast trainer gave other models "
            "(local.check)."
        )
    if late:
        yield (
            f"In {len(late)} of these runs that was found after the first round, in round {max(late)} at the "
            f"latest. All their numbers may be wrong: {RUN_AGAIN}."
        )


def _about_missing(analysis: Analysis) -> Iterator[str]:
    for status, count in Counter(run.status for run in analysis.runs).items():
        total = len(analysis.runs)
        if status == "diverged":
            yield (
                f"{count} of {total} runs diverged. They never arrive, and count where it is compared how "
                "often runs diverge. All other numbers are without them."
            )
        elif status != "complete":
            yield f"{count} of {total} runs {_BECAME[status]}. They are listed and not counted."
    for variant in analysis.variants:
        runs = [run for run in analysis.runs if run.variant == variant]
        lost = sum(run.status == "diverged" for run in runs)
        if lost == len(runs):
            yield f"All runs of {variant} diverged, so it has no numbers."
        elif lost:
            yield f"{lost} of {len(runs)} runs of {variant} diverged. The others bias its results upward."


_BECAME = {
    "missing": "have not run yet",
    "unfinished": "are not finished",
    "failed": "failed",
    "excluded": "were left out",
}


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
    known: list[Collection[int]] = [*columns.values()]
    known += [pairs.by_seed for (variant, _), pairs in analysis.pairs.items() if variant in columns]
    seeds = [seed for seed in next(iter(columns.values()), {}) if all(seed in each for each in known)]
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
    (first, second), score = order[:2], analysis.options.score
    apart, pairs = untied(table[:, first], table[:, second]), len(names) * (len(names) - 1) // 2
    decision = decide(apart, Design.fixed(len(apart), pairs, alpha=analysis.options.alpha))
    found = decision.looks[-1]
    if not apart.any():
        best = [names[at] for at in order if not untied(table[:, first], table[:, at]).any()]
        return (
            f"{', '.join(best[:-1])} and {best[-1]} have the best {score.words}{_without(analysis)}, the "
            f"same under each of the {len(table)} common seeds."
        )
    sure = "significantly better than" if decision.decided else "not significantly better than"
    if analysis.options.until_decided or analysis.options.changes:
        sure = "ahead of"  # how many seeds there are, or what is compared, was chosen by the results
    unit, level = score.unit and f" {score.unit}", 100 * analysis.options.level
    interval = ", the same under each"
    if not flat(apart):
        ends = " to ".join(interval_ends(Deciding(ACCURACY, 1, score=score), found.low, found.high))
        interval = f", {level:g} % interval {ends} (corrected for {pairs} pairs of variants)"
    return (
        f"{names[first]} has the best {score.words}{_without(analysis)}, and is {sure} the next, "
        f"{names[second]}: {formatting.gain(found.mean, score)}{unit}{interval}, over the {len(table)} "
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
