"""Limits of a comparison's claims: number of seeds, pairs, targets, tuning, missing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flsel.comparison.judging import formatting
from flsel.comparison.judging.deciding import budget_of
from flsel.comparison.judging.descriptions import describe
from flsel.comparison.judging.procedure import procedure_notes
from flsel.comparison.judging.summaries import Analysis
from flsel.local.agreement import RUN_AGAIN
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
