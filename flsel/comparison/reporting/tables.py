"""The tables of a comparison: rows for files, and the main table in words for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from flsel.comparison.judging import formatting
from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.judging.claim_words import outcome
from flsel.comparison.judging.claims import Claim
from flsel.comparison.judging.decisions import Look
from flsel.comparison.judging.estimates import improvement, sign_flip
from flsel.comparison.judging.measures import arrival_name
from flsel.comparison.judging.power import resolvable, seeds_needed
from flsel.comparison.judging.summaries import Difference
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
            "scenario": scenario, "variant": variant, "measure": name, "n": s.mean.n, "mean": s.mean.value,
            "low": s.mean.low, "high": s.mean.high, "iqm": s.iqm,
        }
        for (variant, scenario, name), s in analysis.summaries.items()
    ]  # fmt: skip
    for (variant, scenario, name), r in analysis.reached.items():
        mean, median = r.restricted_mean, r.median
        rows.append(
            {
                "scenario": scenario, "variant": variant, "measure": name, "n": r.n, "reached": r.reached,
                "horizon": r.horizon,
                **_ends("median", median.value, median.low, median.high),
                **_ends("restricted_mean", mean.value, mean.low, mean.high),
            }
        )  # fmt: skip
    return rows


def difference_rows(analysis: Analysis) -> list[Row]:
    """Return one row for every comparison with the baseline: what is described, and what is claimed of it.

    The interval ``low`` to ``high`` holds for this comparison alone, ``low_corrected`` to ``high_corrected``
    for all claims together.
    """
    rows = []
    for (variant, scenario, name), d in analysis.differences.items():
        claim, known = analysis.claim(variant, scenario, name), analysis.measures.get(name)
        shown = None if claim is None else claim.shown
        comparisons = 1 if claim is None else claim.design.comparisons
        values, alpha, n = d.values, analysis.options.alpha, len(d.values)
        whole = d.paired and not d.censored  # a bound has no power that is known
        needed = seeds_needed(values, comparisons, alpha) if whole else None
        rows.append(
            {
                "scenario": scenario, "variant": variant, "baseline": analysis.options.baseline,
                "measure": name, "kind": d.kind, "paired": d.paired, "n": d.estimate.n,
                "estimate": d.shown.value, "low": d.shown.low, "high": d.shown.high,
                "p": d.p, "p_holm": math.nan if claim is None else claim.p_holm, "p_exact": sign_flip(values),
                "p_exact_holm": math.nan if claim is None else claim.p_exact_holm,
                "low_corrected": None if shown is None else shown.low,
                "high_corrected": None if shown is None else shown.high,
                "comparisons": comparisons, "p_exact_floor": 2.0 ** (1 - n) if n else math.nan,
                "claim": "exploratory" if claim is None or claim.exploratory else claim.decision.claim,
                "exploratory": "; ".join(claim.exploratory) if claim is not None else "",
                "resolvable": resolvable(values, comparisons, alpha) if whole else math.nan,
                **_ends("seeds_needed", *((None,) * 3 if needed is None else vars(needed).values())),
                **_ends("better_in", *_better_in(d, "min" if known is None else known.better)),
                "censored": d.censored,
            }
        )  # fmt: skip
    return rows


def _better_in(d: Difference, better: str | None) -> tuple[float | None, float | None, float | None]:
    """Return the share of pairs in which the variant is better: more accuracy, less loss, less cost."""
    found = improvement(d.values)
    if better is None:
        return None, None, None
    if better == "max":
        return found.value, found.low, found.high
    return 1 - found.value, 1 - found.high, 1 - found.low


def _ends(name: str, value: Any, low: Any, high: Any) -> Row:
    """Return the columns of a number and its interval."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}


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
        [v, str(len(analysis.of(v, scenario))), *(write(analysis, v, scenario) for _, write in columns)]
        for v in analysis.variants
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
    for (variant, scenario, name), way in analysis.reached.items():
        if (variant, scenario, "complete") == (run.variant, run.scenario, run.status):
            found = way.arrivals[run.seed]
            row |= {name: found.at, f"{name}/reached": found.reached}
    return row


Write = Callable[[Analysis, str, str], str]
"""Writes a cell, of a variant in a scenario."""
_Column = tuple[str, Write]


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
    there = loss != analysis.main and any(name == loss for _, _, name in analysis.summaries)
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
    unit, median = COST_AXES[analysis.options.cost].unit, found.median
    if math.isinf(median.value):
        return f"> {formatting.number(found.horizon, unit)}"
    return formatting.estimate(median, unit)


def reached(analysis: Analysis, variant: str, scenario: str) -> str:
    """Write how many runs reach the target, of how many: ``8/10``."""
    found = analysis.arrival(variant, scenario, analysis.to_target)
    return "-" if found is None else f"{found.reached}/{found.n}"


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
    claim, exact = analysis.claim(variant, scenario, name), len(found.values)
    if not found.paired and found.censored:
        return f"about {formatting.ratio(found.shown)} over runs that arrive"
    if not found.pairs or exact == found.pairs:
        return formatting.ratio(analysis.against(variant, scenario, name) or found.shown)
    if found.bound is None or found.side is None:
        return f"about {formatting.ratio(found.shown)} in {exact} of {found.pairs} pairs" if exact else "-"
    own = claim.shown if claim is not None and claim.scenario == scenario else None
    return formatting.bound(own or found.bound.map(math.exp), found.side)


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return "" if value is None else value
