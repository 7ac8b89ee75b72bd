"""What must be known to believe a comparison's claims: seeds, pairs, targets, tuning, missing runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from flsel.comparison.judging import words
from flsel.comparison.judging.results import Analysis
from flsel.comparison.judging.statistics import seeds_to_reject


def notes(analysis: Analysis) -> list[str]:
    """Return what limits the claims: seeds, pairing, missing runs, fairness; one sentence each."""
    return [
        *_about_seeds(analysis),
        *_about_length(analysis),
        *_about_targets(analysis),
        *_about_pairs(analysis),
        *_about_tuning(analysis),
        *_about_missing(analysis),
    ]


def _about_seeds(analysis: Analysis) -> Iterator[str]:
    compared = [d for d in analysis.differences if d.measure == analysis.main]
    if not compared:
        alone = len(analysis.variants) == 1
        why = "there is one variant" if alone else "no variant shares a finished seed with the baseline"
        yield f"Nothing is compared: {why}."
        return
    several, family = [d for d in compared if d.found.difference.n > 1], len(compared)
    if not several:
        yield "One seed shows no spread: numbers stand without intervals, and no claim is made."
        return
    fewest, needed = min(d.found.difference.n for d in several), seeds_to_reject(family)
    if fewest < needed and all(d.paired for d in compared):
        corrected = f", corrected for {family} comparisons" if family > 1 else ""
        yield (
            f"The exact sign-flip test cannot reject at 5 % with {fewest} seeds{corrected}, whatever the "
            f"runs show; {needed} seeds could. Claims rest on the t intervals, which assume more."
        )
    known = [d.found for d in several if math.isfinite(d.found.resolvable)]
    worst = max(known, key=lambda found: found.resolvable, default=None)
    if worst is not None and worst.resolvable > 0:
        yield (
            f"With {words.seeds(worst.difference.n)} a difference of {100 * worst.resolvable:.1f} points of "
            "accuracy is found four times in five; smaller ones may stay unseen."
        )


def _about_length(analysis: Analysis) -> Iterator[str]:
    last, asked = analysis.options.last, analysis.options.asked
    if last < asked:
        yield (
            f"Runs are so short that means are of {last} evaluation{'s' if last > 1 else ''}, half of what "
            f"the shortest run has, and not of {asked}."
        )
    done = [run.summary for run in analysis.runs if run.status == "complete"]
    early = sum(ended["rounds"] < ended["planned_rounds"] for ended in done)
    if early:
        yield (
            f"{early} of {len(done)} runs ended before their last round (at a target, or by a callback): "
            "what they end with, and their totals, are of other rounds. Costs to a target compare."
        )


def _about_targets(analysis: Analysis) -> Iterator[str]:
    if analysis.target is None:
        yield "There is no target accuracy, so no cost to reach one: give --target."
    elif analysis.target.chosen_after:
        yield (
            f"The target of {100 * analysis.target.accuracy:g} % was chosen after the fact: costs to it "
            "are a description, not a test. Give --target beforehand."
        )


def _about_pairs(analysis: Analysis) -> Iterator[str]:
    problems = [problem for pairs in analysis.pairs.values() for problem in pairs.problems]
    yield from (f"{problem}." for problem in problems)
    used = [pairs for pairs in analysis.pairs.values() if pairs.ours]
    if used and all(pairs.verified for pairs in used):
        yield (
            "Pairs are verified: under one seed all variants had the same partition, holdouts, "
            "availability and initial model."
        )
    elif used and not problems:
        yield ("Pairs are taken from equal settings and seeds; the runs keep no fingerprints to prove it.")


def _about_tuning(analysis: Analysis) -> Iterator[str]:
    judged = {run.seed for run in analysis.runs if run.status == "complete"}
    for variant, tuning in analysis.tuned.items():
        shared = sorted(judged & set(tuning.seeds))
        if shared:
            yield (
                f"{variant} was tuned on seeds {', '.join(map(str, shared))} ({tuning.sweep}), which judge "
                "it here: its lead is flattered. Compare under other seeds."
            )
    budgets = {variant: tuning.trials * tuning.rounds for variant, tuning in analysis.tuned.items()}
    untuned = [variant for variant in analysis.variants if variant not in budgets]
    if budgets and untuned:
        yield f"{', '.join(budgets)} was tuned, and {', '.join(untuned)} was not."
    if len(set(budgets.values())) > 1:
        listed = ", ".join(f"{variant} {rounds:,} rounds" for variant, rounds in budgets.items())
        yield f"Tuning budgets differ: {listed}."


def _about_missing(analysis: Analysis) -> Iterator[str]:
    for status, count in Counter(run.status for run in analysis.runs).items():
        if status != "complete":
            total = len(analysis.runs)
            yield f"{count} of {total} runs {_BECAME[status]}: they count nowhere and are listed."
    for variant in analysis.variants:
        runs = [run for run in analysis.runs if run.variant == variant]
        lost = sum(run.status == "diverged" for run in runs)
        if lost == len(runs):
            yield f"All runs of {variant} diverged: it has no numbers."
        elif lost:
            yield f"{lost} of {len(runs)} runs of {variant} diverged: what the others show flatters it."


_BECAME = {
    "missing": "are not played yet",
    "unfinished": "are not finished",
    "diverged": "diverged",
    "failed": "failed",
    "excluded": "were left out for other settings",
}
