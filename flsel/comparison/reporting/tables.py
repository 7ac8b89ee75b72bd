"""The tables of a comparison: rows for files, and the main table in words for people."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flsel.comparison.judging import formatting
from flsel.comparison.judging.claims import MEAN
from flsel.comparison.judging.results import Analysis, Difference, arrival_name
from flsel.comparison.judging.statistics import Estimate
from flsel.comparison.judging.target_verdicts import ratio_cell
from flsel.comparison.run_table import Run, complete
from flsel.runner.cost_axes import COST_AXES

Row = dict[str, Any]
MOST_SCENARIOS = 4  # Tables of more scenarios hide what is said of all of them.


def result_rows(analysis: Analysis) -> list[Row]:
    """Return one row a run, complete or not: who it is, what became of it, and every measure."""
    return [_result(analysis, run) for run in analysis.runs]


def summary_rows(analysis: Analysis) -> list[Row]:
    """Return one row for every variant, scenario and measure."""
    rows = [
        {
            "scenario": s.scenario, "variant": s.variant, "measure": s.measure, "n": s.mean.n,
            "mean": s.mean.value, "low": s.mean.low, "high": s.mean.high, "iqm": s.iqm,
        }
        for s in analysis.summaries
    ]  # fmt: skip
    for r in analysis.reached:
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
    """Return one row for every comparison with the baseline."""
    return [
        {
            "scenario": d.scenario, "variant": d.variant, "baseline": analysis.options.baseline,
            "measure": d.measure, "kind": d.kind, "paired": d.paired, "n": d.found.difference.n,
            "estimate": d.shown.value, "low": d.shown.low, "high": d.shown.high,
            "p": d.found.p, "p_holm": d.p_holm, "p_exact": d.found.p_exact, "p_exact_holm": d.p_exact_holm,
            "low_corrected": _end(d.shown_corrected, "low"),
            "high_corrected": _end(d.shown_corrected, "high"),
            "comparisons": d.comparisons,
            "p_exact_floor": d.found.p_floor, "resolved": d.resolved, "resolvable": d.resolvable,
            **_needed(d), **_better_in(analysis, d),
            "censored": d.censored,
        }
        for d in analysis.differences
    ]  # fmt: skip


def _better_in(analysis: Analysis, d: Difference) -> Row:
    """Return the share of pairs in which the variant is better: more accuracy, less loss, less cost."""
    known, found = analysis.measures.get(d.measure), d.found.improvement
    better = "min" if known is None else known.better
    ends = (found.value, found.low, found.high)
    if better == "min":
        ends = (1 - found.value, 1 - found.high, 1 - found.low)
    shown = (None, None, None) if better is None else ends
    return dict(zip(("better_in", "better_in_low", "better_in_high"), shown, strict=True))


def _end(found: Estimate | None, name: str) -> float | None:
    return None if found is None else float(getattr(found, name))


def _needed(d: Difference) -> Row:
    found = d.seeds_needed
    names = ("seeds_needed", "seeds_needed_low", "seeds_needed_high")
    values = (None, None, None) if found is None else (found.value, found.low, found.high)
    return dict(zip(names, values, strict=True))


def decision_rows(analysis: Analysis) -> list[Row]:
    """Return one row for every look at every claim, where seeds are added until claims are decided."""
    return [
        {
            "variant": claim.variant, "scenario": claim.scenario, "look": number + 1, "n": look.n,
            "mean": look.mean, "sd": look.sd, "low": look.low, "high": look.high,
            "inner_low": look.inner_low, "inner_high": look.inner_high, "hope": look.hope,
            "margin": claim.design.margin, "comparisons": claim.design.comparisons,
            "verdict": claim.decision.claim if number + 1 == len(claim.decision.looks) else "undecided",
            "given_up": claim.decision.given_up and number + 1 == len(claim.decision.looks),
        }
        for claim in analysis.claims
        for number, look in enumerate(claim.decision.looks)
    ]  # fmt: skip


def main_table(analysis: Analysis, scenario: str) -> tuple[list[str], list[list[str]]]:
    """Return the main table of a scenario in words: headings, and a row for every variant."""
    return _headings(analysis), [_main_row(analysis, variant, scenario) for variant in analysis.variants]


def lost_rows(analysis: Analysis) -> list[tuple[str, str]]:
    """Return the runs that count nowhere, and why."""
    return [
        (str(run.folder), f"{run.status}: {run.reason}") for run in analysis.runs if run.status != "complete"
    ]


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as CSV; columns are those of all rows, cells without a value are empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def to_markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table as Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _result(analysis: Analysis, run: Run) -> Row:
    row: Row = {
        "variant": run.variant, "scenario": run.scenario, "seed": run.seed, "status": run.status,
        "reason": run.reason, "folder": str(run.folder),
    }  # fmt: skip
    row |= analysis.values.get(str(run.folder), {})
    for reached in analysis.reached:
        if (reached.variant, reached.scenario) == (run.variant, run.scenario) and run.status == "complete":
            found = reached.arrivals[run.seed]
            row[reached.measure] = found.at
            row[f"{reached.measure}/reached"] = found.reached
    return row


def _headings(analysis: Analysis) -> list[str]:
    """Name the columns, what decides first: a narrow terminal shows the first ones only."""
    base = analysis.options.baseline
    headings = ["variant", "seeds", f"test accuracy (last {analysis.options.last})", f"against {base}"]
    if analysis.target is not None:
        goal = f"{100 * analysis.target.accuracy:g} %"
        headings += [
            f"{COST_AXES[analysis.options.cost].label} to {goal}",
            "reached",
            *(f"{_RATIOS[cost]}, ratio" for cost in _ratios(analysis)),
        ]
    decided = "p (Holm)" if analysis.options.sequential is None else "decided"
    headings.insert(4, decided)
    own = [f"test {name.partition('/')[0]} (last {analysis.options.last})" for name in analysis.own]
    return [*headings, *own, "test loss", "bytes sent", "Gini"]


def _main_row(analysis: Analysis, variant: str, scenario: str) -> list[str]:
    accuracy = analysis.summary(variant, scenario, analysis.main)
    if accuracy is None:
        return [variant, "0"] + ["-"] * (len(_headings(analysis)) - 2)
    against = analysis.difference(variant, scenario, analysis.main)
    loss = analysis.summary(variant, scenario, f"loss/last{analysis.options.last}")
    measure = analysis.measures[analysis.main]
    cells = [
        variant,
        str(accuracy.mean.n),
        formatting.estimate(accuracy.mean, "%"),
        "-" if against is None else formatting.difference(against.shown, measure),
    ]
    cells.append(_decided(analysis, variant, scenario))
    if analysis.target is not None:
        cells += _target_cells(analysis, variant, scenario)
    for name in analysis.own:
        found = analysis.summary(variant, scenario, name)
        cells.append("-" if found is None else formatting.estimate(found.mean, ""))
    cells.append("-" if loss is None else formatting.estimate(loss.mean, "nats"))
    for name, unit in (("total/bytes", "bytes"), ("participation/gini", "")):
        found = analysis.summary(variant, scenario, name)
        cells.append("-" if found is None else formatting.number(found.mean.value, unit))
    return cells


def _decided(analysis: Analysis, variant: str, scenario: str) -> str:
    """Write the corrected p-value beside its difference, or what was decided at how many seeds."""
    if analysis.options.sequential is None:
        against = analysis.difference(variant, scenario, analysis.main)
        return "-" if against is None else formatting.p_value(against.p_holm)
    for claim in analysis.claims:
        if claim.variant == variant and claim.scenario in (scenario, MEAN):
            given_up = "given up" if claim.decision.given_up else claim.decision.claim
            return f"{given_up} at {claim.decision.n}"
    return "-"


def _target_cells(analysis: Analysis, variant: str, scenario: str) -> list[str]:
    last = analysis.options.last
    reached, unit = (
        analysis.arrival(variant, scenario, analysis.to_target),
        COST_AXES[analysis.options.cost].unit,
    )
    cells = ["-", "-"]
    if reached is not None:
        median = reached.found.median
        ends = formatting.number(reached.found.horizon, unit)
        shown = f"> {ends}" if math.isinf(median.value) else formatting.estimate(median, unit)
        cells = [shown, f"{reached.found.reached}/{reached.found.n}"]
    names = [arrival_name(cost, last) for cost in _ratios(analysis)]
    return cells + [ratio_cell(analysis, variant, scenario, name) for name in names]


# Costs to the target whose ratios the main table has, where runs have them, and what its head calls them.
_RATIOS = {"rounds": "rounds", "models": "models down", "simulated_seconds": "simulated s"}


def _ratios(analysis: Analysis) -> list[str]:
    timed = any("simulated_seconds" in run.columns for run in complete(analysis.runs))
    return [cost for cost in _RATIOS if timed or cost != "simulated_seconds"]


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return "" if value is None else value
