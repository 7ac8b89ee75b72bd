"""Limits of a comparison's claims: number of seeds, pairs, targets, tuning, missing runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from flsel.comparison.judging import formatting
from flsel.comparison.judging.claim_verdicts import procedure_notes
from flsel.comparison.judging.estimates import FEWEST_SEEDS
from flsel.comparison.judging.seeds_needed import seeds_to_reject
from flsel.comparison.judging.summaries import Analysis, Difference
from flsel.local.agreement import RUN_AGAIN

_HOPELESS = 0.5  # Of a larger difference that is needed the size says nothing.


def notes(analysis: Analysis) -> list[str]:
    """Return what limits the claims: seeds, pairing, missing runs, fairness; one sentence each."""
    return [
        *procedure_notes(analysis),
        *_about_seeds(analysis),
        *_about_length(analysis),
        *_about_targets(analysis),
        *_about_pairs(analysis),
        *_about_tuning(analysis),
        *_about_checks(analysis),
        *_about_missing(analysis),
    ]


def _about_seeds(analysis: Analysis) -> Iterator[str]:
    if analysis.options.sequential is not None:
        return
    compared = [d for d in analysis.differences if d.measure == analysis.main]
    if not compared:
        alone = len(analysis.variants) == 1
        why = "there is one variant" if alone else "no variant shares a finished seed with the baseline"
        yield f"Nothing is compared: {why}."
        return
    yield from _about_added_seeds(analysis)
    several = [d for d in compared if d.found.difference.n > 1]
    if not several:
        yield "One seed shows no spread. Numbers have no intervals, and no claim is made."
        return
    fewest, family = min(d.found.difference.n for d in several), max(d.comparisons for d in several)
    if min(d.found.difference.n for d in compared) < FEWEST_SEEDS:
        yield (
            f"No claim is made from fewer than {FEWEST_SEEDS} seeds: with fewer, an interval holds for "
            "normally distributed differences only, which so few cannot show."
        )
    needed = seeds_to_reject(family)
    if fewest < needed and all(d.paired for d in compared):
        yield (
            f"The exact sign-flip test cannot reject at 5 % with {formatting.seeds(fewest)}"
            f"{_corrected_for(family)}, whatever the runs show. It takes {needed} seeds. Claims rest on t "
            "intervals, which assume normally distributed differences."
        )
    known = [d for d in several if math.isfinite(d.resolvable)]
    worst = max(known, key=lambda found: found.resolvable, default=None)
    if worst is not None and worst.resolvable >= _HOPELESS:
        yield (
            f"Differences of {worst.variant} vary so much that {formatting.seeds(worst.found.difference.n)} "
            f"give 80 % power only for more than {100 * _HOPELESS:.0f} points of accuracy"
            f"{_corrected_for(family)}."
        )
    elif worst is not None and worst.resolvable > 0:
        yield (
            f"{formatting.seeds(worst.found.difference.n)} give 80 % power for a difference of "
            f"{100 * worst.resolvable:.1f} points of accuracy{_corrected_for(family)}. Smaller differences "
            "may stay unseen."
        )
    yield from _about_skew(several)
    if any(d.resolved for d in several):
        yield (
            "Estimates of significant differences are too large on average, the more so the fewer seeds "
            "there are. Intervals hold for one comparison each; differences.csv has those that hold for all "
            "together."
        )


def _corrected_for(family: int) -> str:
    return f", corrected for {family} comparisons" if family > 1 else ""


def _about_added_seeds(analysis: Analysis) -> Iterator[str]:
    seen = analysis.options.seeds_added
    if seen:
        times = {1: "once", 2: "twice"}.get(len(seen), f"{len(seen)} times")
        yield (
            f"Seeds were added {times} after results were seen (at {', '.join(map(str, seen))} seeds): the "
            "error rate is not controlled. Looking at 3, 5, 8 and 12 seeds makes a false claim in 11 % of "
            "comparisons instead of 5 %. Use --until-decided, which corrects for the looks."
        )


def _about_skew(compared: Sequence[Difference]) -> Iterator[str]:
    """Say where differences are so skewed that t intervals err more often than they say."""
    for d in compared:
        values = np.array(d.found.values)
        if len(values) < FEWEST_SEEDS or np.ptp(values) == 0:
            continue
        skew = float(stats.skew(values, bias=False))
        if abs(skew) > 1.5:
            won = int((values > 0).sum())
            yield (
                f"Differences of {d.variant}{formatting.where(d.scenario)} are skewed "
                f"(skewness {skew:+.1f}): false claims are 8 to 10 % of such comparisons, not 5 %. "
                f"It is better in {won} of {len(values)} pairs; the exact test in differences.csv assumes no "
                "normal law."
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
    if early:
        yield (
            f"{early} of {len(done)} runs ended before their last round: at a target, by a callback, or by a "
            "budget. Their final values and totals are of other rounds. Costs to a target can be compared."
        )


def _about_targets(analysis: Analysis) -> Iterator[str]:
    if analysis.target is None:
        yield "There is no target accuracy, so no cost to reach one. Give --target."
    elif analysis.target.chosen_after:
        yield (
            f"The target of {100 * analysis.target.accuracy:g} % was chosen after the runs: costs to it are "
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
        yield f"{', '.join(budgets)} was tuned, and {', '.join(untuned)} was not."
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
        if status != "complete":
            total = len(analysis.runs)
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
    "diverged": "diverged",
    "failed": "failed",
    "excluded": "were left out",
}
