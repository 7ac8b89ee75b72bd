"""The tables of a comparison: rows for files, and the main table in words for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from flsel.comparison.judging import formatting
from flsel.comparison.judging.claim_words import outcome
from flsel.comparison.judging.claims import Claim
from flsel.comparison.judging.decisions import Look
from flsel.comparison.judging.measures import arrival_name
from flsel.comparison.judging.power import SeedsNeeded, resolvable, seeds_needed
from flsel.comparison.judging.summaries import Analysis, Difference
from flsel.comparison.run_table import Run, complete
from flsel.files.escaping import csv_text, markdown_text
from flsel.runner.cost_axes import COST_AXES

Row = dict[str, Any]
MOST_SCENARIOS = 4  # Tables of more scenarios hide what is said of all of them.


def result_rows(analysis: Analysis) -> list[Row]:
    """Return one row for each run, complete or not: variant, scenario, seed, status, and every measure."""
    return [_result(analysis, run) for run in analysis.runs]


def summary_rows(analysis: Analysis) -> list[Row]:
    """Return one row for every variant, scenario and measure."""
    rows = [
        {
            "scenario": s.scenario, "variant": s.variant, "measure": s.measure, "n": s.mean.n,
            "mean": s.mean.value, "low": s.mean.low, "high": s.mean.high, "iqm": s.iqm,
        }
        for s in analysis.summaries.values()
    ]  # fmt: skip
    for r in analysis.reached.values():
        mean, median = r.found.restricted_mean, r.found.median
        rows.append(
            {
                "scenario": r.scenario, "variant": r.variant, "measure": r.measure, "n": r.found.n,
                "reached": r.found.reached, "horizon": r.found.horizon, "median": median.value,
                "median_low": median.low, "median_high": median.high, "restricted_mean": mean.value,
                "restricted_mean_low": mean.low, "restricted_mean_high": mean.high,
            }
        )  # fmt: skip
    return rows


def difference_rows(analysis: Analysis) -> list[Row]:
    """Return one row for every comparison with the baseline: what is described, and what is claimed of it.

    The interval ``low`` to ``high`` holds for this comparison alone, ``low_corrected`` to ``high_corrected``
    for all claims together.
    """
    rows = []
    for d in analysis.differences.values():
        claim = analysis.claim(d.variant, d.scenario, d.measure)
        shown = None if claim is None else claim.shown
        comparisons = 1 if claim is None else claim.design.comparisons
        values, alpha = np.array(d.found.values), analysis.options.alpha
        whole = d.paired and not d.censored  # a bound has no power that is known
        rows.append(
            {
                "scenario": d.scenario, "variant": d.variant, "baseline": analysis.options.baseline,
                "measure": d.measure, "kind": d.kind, "paired": d.paired, "n": d.found.difference.n,
                "estimate": d.shown.value, "low": d.shown.low, "high": d.shown.high,
                "p": d.found.p, "p_holm": math.nan if claim is None else claim.p_holm,
                "p_exact": d.found.p_exact, "p_exact_holm": math.nan if claim is None else claim.p_exact_holm,
                "low_corrected": None if shown is None else shown.low,
                "high_corrected": None if shown is None else shown.high,
                "comparisons": comparisons, "p_exact_floor": d.found.p_floor,
                "claim": "exploratory" if claim is None or claim.exploratory else claim.decision.claim,
                "exploratory": "; ".join(claim.exploratory) if claim is not None else "",
                "resolvable": resolvable(values, comparisons, alpha) if whole else math.nan,
                **_needed(seeds_needed(values, comparisons, alpha) if whole else None),
                **_better_in(analysis, d), "censored": d.censored,
            }
        )  # fmt: skip
    return rows


def _better_in(analysis: Analysis, d: Difference) -> Row:
    """Return the share of pairs in which the variant is better: more accuracy, less loss, less cost."""
    known, found = analysis.measures.get(d.measure), d.found.improvement
    better = "min" if known is None else known.better
    ends = (found.value, found.low, found.high)
    if better == "min":
        ends = (1 - found.value, 1 - found.high, 1 - found.low)
    shown = (None, None, None) if better is None else ends
    return dict(zip(("better_in", "better_in_low", "better_in_high"), shown, strict=True))


def _needed(found: SeedsNeeded | None) -> Row:
    values = (None, None, None) if found is None else (found.value, found.low, found.high)
    return dict(zip(("seeds_needed", "seeds_needed_low", "seeds_needed_high"), values, strict=True))


def decision_rows(analysis: Analysis) -> list[Row]:
    """Return one row for every look at every claim.

    Differences are positive where the variant is better, in points of accuracy, the unit of another score, or
    as ln(baseline / variant) of a cost, which rows of costs have as the ratio variant / baseline too. Of
    arrival and divergence they are the share of pairs in which only one of the two arrives, or diverges.
    """
    return [
        {
            "variant": claim.variant, "scenario": claim.scenario,
            "measure": claim.measure if claim.kind == "mean" else claim.kind, "unit": _unit(claim),
            "look": number + 1, "n": look.n,
            "mean": look.mean, "sd": look.sd, "low": look.low, "high": look.high,
            "inner_low": look.inner_low, "inner_high": look.inner_high, "hope": look.hope,
            "margin": claim.design.margin, "comparisons": claim.design.comparisons,
            "verdict": claim.decision.claim if number + 1 == len(claim.decision.looks) else "undecided",
            "given_up": claim.decision.given_up and number + 1 == len(claim.decision.looks),
            **_ratio_of(claim, look),
        }
        for claim in analysis.claims
        for number, look in enumerate(claim.decision.looks)
    ]  # fmt: skip


def _unit(claim: Claim) -> str:
    if claim.kind != "mean":
        return "share of pairs"
    return claim.deciding.score.unit if claim.deciding.target is None else "ln(baseline / variant)"


def _ratio_of(claim: Claim, look: Look) -> Row:
    """Return the ratio of the costs at a look, and how many runs reached the target."""
    if claim.deciding.target is None or claim.kind != "mean":
        return {}
    ours, theirs = claim.arrived(look.n)
    return {
        "ratio": math.exp(-look.mean), "ratio_low": math.exp(-look.high), "ratio_high": math.exp(-look.low),
        "reached": ours, "reached_baseline": theirs, "runs": look.n * claim.runs,
    }  # fmt: skip


def main_table(analysis: Analysis, scenario: str) -> tuple[list[str], list[list[str]]]:
    """Return the main table of a scenario in words: headings, and a row for every variant.

    What decides comes first: a narrow terminal shows the first columns only.
    """
    columns = _columns(analysis)
    rows = [
        [variant, str(len(analysis.of(variant, scenario))), *_cells(analysis, columns, variant, scenario)]
        for variant in analysis.variants
    ]
    return ["variant", "seeds", *(heading for heading, _ in columns)], rows


def lost_rows(analysis: Analysis) -> list[tuple[str, str]]:
    """Return the runs that count nowhere, and why."""
    return [
        (str(run.folder), f"{run.status}: {run.reason}") for run in analysis.runs if run.status != "complete"
    ]


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as CSV; columns are those of all rows, cells without a value are empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text([columns, *([_cell(row.get(name)) for name in columns] for row in rows)])


def to_markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table as Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(markdown_text(cell) for cell in line) + " |" for line in lines)


def _result(analysis: Analysis, run: Run) -> Row:
    row: Row = {
        "variant": run.variant, "scenario": run.scenario, "seed": run.seed, "status": run.status,
        "reason": run.reason, "folder": str(run.folder),
    }  # fmt: skip
    row |= analysis.values.get(str(run.folder), {})
    for way in analysis.reached.values():
        if (way.variant, way.scenario) == (run.variant, run.scenario) and run.status == "complete":
            found = way.arrivals[run.seed]
            row |= {way.measure: found.at, f"{way.measure}/reached": found.reached}
    return row


Write = Callable[[Analysis, str, str], str]
"""Writes a cell, of a variant in a scenario."""
_Column = tuple[str, Write]


def _cells(analysis: Analysis, columns: Sequence[_Column], variant: str, scenario: str) -> list[str]:
    if not analysis.of(variant, scenario):
        return ["-"] * len(columns)
    return [write(analysis, variant, scenario) for _, write in columns]


def _columns(analysis: Analysis) -> list[_Column]:
    """Return the headings of the main table behind the seeds, and what writes their cells."""
    last, base = analysis.options.last, analysis.options.baseline
    words = analysis.options.score.words
    scores: list[_Column] = [(f"{words} (last {last})", score), (f"against {base}", against)]
    decided: _Column = (decided_heading(analysis), _decided)
    ratios = _ratios(analysis)
    listed = [*scores, decided, *_arrival_columns(analysis), *ratios]
    if analysis.deciding != analysis.main:
        listed = [*_arrival_columns(analysis), ratios[0], decided, *scores, *ratios[1:]]
    own = [
        (f"test {name.partition('/')[0]} (last {last})", partial(_mean, name, analysis.measures[name].unit))
        for name in analysis.own
    ]
    loss = f"loss/last{last}"
    there = loss != analysis.main and any(s.measure == loss for s in analysis.summaries.values())
    return [
        *listed,
        *own,
        *([("test loss", partial(_mean, loss, "nats"))] if there else []),
        ("bytes sent", partial(total, "total/bytes", "bytes")),
        ("Gini", partial(total, "participation/gini", "")),
    ]


def score(analysis: Analysis, variant: str, scenario: str) -> str:
    """Write a score with its interval."""
    return _mean(analysis.main, analysis.measures[analysis.main].unit, analysis, variant, scenario)


def _mean(name: str, unit: str, analysis: Analysis, variant: str, scenario: str) -> str:
    found = analysis.summary(variant, scenario, name)
    return "-" if found is None else formatting.estimate(found.mean, unit)


def total(name: str, unit: str, analysis: Analysis, variant: str, scenario: str) -> str:
    """Write the mean of a measure without its interval."""
    found = analysis.summary(variant, scenario, name)
    return "-" if found is None else formatting.number(found.mean.value, unit)


def against(analysis: Analysis, variant: str, scenario: str) -> str:
    """Write the difference of scores, with the interval that decides its claim, or its own."""
    found = analysis.against(variant, scenario, analysis.main)
    return "-" if found is None else formatting.difference(found, analysis.measures[analysis.main])


def decided_heading(analysis: Analysis) -> str:
    """Return the heading of what was decided: with a p-value of one look, or of a mean over scenarios."""
    if not analysis.options.until_decided:
        return "decided (p, Holm)"
    mean = len(analysis.scenarios) > 1 and not analysis.options.each_scenario
    return "decided (mean)" if mean else "decided"


def _decided(analysis: Analysis, variant: str, scenario: str) -> str:
    """Write what was decided, with the corrected p-value of one look, or at how many seeds."""
    claim = analysis.claim(variant, scenario, analysis.deciding)
    return "-" if claim is None else outcome(claim)


def _arrival_columns(analysis: Analysis) -> list[_Column]:
    """Return the columns of when variants reach the target, in the cost asked for."""
    if analysis.target is None:
        return []
    goal = analysis.target.shown
    return [(f"{COST_AXES[analysis.options.cost].label} to {goal}", _median), ("reached", reached)]


def _median(analysis: Analysis, variant: str, scenario: str) -> str:
    found = analysis.arrival(variant, scenario, analysis.to_target)
    if found is None:
        return "-"
    unit, median = COST_AXES[analysis.options.cost].unit, found.found.median
    if math.isinf(median.value):
        return f"> {formatting.number(found.found.horizon, unit)}"
    return formatting.estimate(median, unit)


def reached(analysis: Analysis, variant: str, scenario: str) -> str:
    """Write how many runs reach the target, of how many: ``8/10``."""
    found = analysis.arrival(variant, scenario, analysis.to_target)
    return "-" if found is None else f"{found.found.reached}/{found.found.n}"


# What the main table calls costs to the target whose ratios it has, where runs have them.
_RATIOS = {"rounds": "rounds", "models": "models down", "simulated_seconds": "simulated s"}


def _ratios(analysis: Analysis) -> list[_Column]:
    """Return the columns of ratios of costs to the target, that of the cost asked for first."""
    if analysis.target is None:
        return []
    shown = list(_RATIOS)
    if not any("simulated_seconds" in run.columns for run in complete(analysis.runs)):
        shown.remove("simulated_seconds")
    listed = dict.fromkeys((analysis.options.cost, *shown))
    last = analysis.options.last
    return [
        (f"{_RATIOS.get(c, COST_AXES[c].label)}, ratio", partial(ratio_cell, arrival_name(c, last)))
        for c in listed
    ]


def ratio_cell(name: str, analysis: Analysis, variant: str, scenario: str) -> str:
    """Write a ratio of costs with the interval that decides, or its own; a bound where runs are late."""
    found = analysis.difference(variant, scenario, name)
    if found is None:
        return "-"
    late, claim = found.late, analysis.claim(variant, scenario, name)
    if late is None or late.exact == late.pairs:
        return formatting.ratio(analysis.against(variant, scenario, name) or found.shown)
    if late.bound is None or late.side is None:
        pairs = f"in {late.exact} of {late.pairs} pairs"
        return f"about {formatting.ratio(found.shown)} {pairs}" if late.exact else "-"
    own = claim.shown if claim is not None and claim.scenario == scenario else None
    return formatting.bound(own or late.bound.map(math.exp), late.side)


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return "" if value is None else value
