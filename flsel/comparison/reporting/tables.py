"""The tables of a comparison: rows for files, and the main table in words for people."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flsel.comparison.judging import words
from flsel.comparison.judging.results import Analysis, arrival_name
from flsel.comparison.judging.statistics import Estimate
from flsel.comparison.reading import Run

Row = dict[str, Any]
MOST_SETTINGS = 4  # Tables of more settings hide what is said of all of them.


def result_rows(analysis: Analysis) -> list[Row]:
    """Return one row a run, complete or not: who it is, what became of it, and every measure."""
    return [_result(analysis, run) for run in analysis.runs]


def summary_rows(analysis: Analysis) -> list[Row]:
    """Return one row for every variant, setting and measure."""
    rows = [
        {
            "setting": s.setting, "variant": s.variant, "measure": s.measure, "n": s.mean.n,
            "mean": s.mean.value, "low": s.mean.low, "high": s.mean.high, "iqm": s.iqm,
        }
        for s in analysis.summaries
    ]  # fmt: skip
    for r in analysis.reached:
        mean, median = r.found.restricted_mean, r.found.median
        rows.append(
            {
                "setting": r.setting, "variant": r.variant, "measure": r.measure, "n": r.found.n,
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
            "setting": d.setting, "variant": d.variant, "baseline": analysis.options.baseline,
            "measure": d.measure, "kind": d.kind, "paired": d.paired, "n": d.found.difference.n,
            "estimate": d.shown.value, "low": d.shown.low, "high": d.shown.high,
            "p": d.found.p, "p_holm": d.p_holm, "p_exact": d.found.p_exact, "p_exact_holm": d.p_exact_holm,
            "p_exact_floor": d.found.p_floor, "resolved": d.resolved, "resolvable": d.found.resolvable,
            "seeds_needed": d.found.seeds_needed, "larger_in": d.found.improvement.value,
            "larger_in_low": d.found.improvement.low, "larger_in_high": d.found.improvement.high,
            "censored": d.censored,
        }
        for d in analysis.differences
    ]  # fmt: skip


def main_table(analysis: Analysis, setting: str) -> tuple[list[str], list[list[str]]]:
    """Return the main table of a setting in words: headings, and a row for every variant."""
    return _headings(analysis), [_main_row(analysis, variant, setting) for variant in analysis.variants]


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


def to_latex(analysis: Analysis) -> str:
    """Write the main tables with booktabs' rules, one block a setting."""
    headings, _ = main_table(analysis, analysis.settings[0])
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
        "\\toprule",
        " & ".join(map(_tex, headings)) + r" \\",
    ]
    for setting in analysis.settings:
        lines.append("\\midrule")
        if len(analysis.settings) > 1:
            lines.append(rf"\multicolumn{{{len(headings)}}}{{l}}{{\emph{{{_tex(setting)}}}}} \\")
        lines += [" & ".join(map(_tex, row)) + r" \\" for row in main_table(analysis, setting)[1]]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _result(analysis: Analysis, run: Run) -> Row:
    row: Row = {
        "variant": run.variant, "setting": run.setting, "seed": run.seed, "status": run.status,
        "reason": run.reason, "folder": str(run.folder),
    }  # fmt: skip
    row |= analysis.values.get(str(run.folder), {})
    for reached in analysis.reached:
        if (reached.variant, reached.setting) == (run.variant, run.setting) and run.status == "complete":
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
        headings += [f"rounds to {goal}", "reached", "rounds, ratio", "models down, ratio"]
    return [*headings, "p (Holm)", "test loss", "bytes sent", "Gini"]


def _main_row(analysis: Analysis, variant: str, setting: str) -> list[str]:
    accuracy = analysis.summary(variant, setting, analysis.main)
    if accuracy is None:
        return [variant, "0"] + ["-"] * (len(_headings(analysis)) - 2)
    against = analysis.difference(variant, setting, analysis.main)
    loss = analysis.summary(variant, setting, f"loss/last{analysis.options.last}")
    measure = analysis.measures[analysis.main]
    cells = [
        variant,
        str(accuracy.mean.n),
        words.estimate(accuracy.mean, "%"),
        "-" if against is None else words.difference(against.shown, measure),
    ]
    if analysis.target is not None:
        cells += _target_cells(analysis, variant, setting)
    cells.append("-" if against is None else words.p_value(against.p_holm))
    cells.append("-" if loss is None else words.estimate(loss.mean, "nats"))
    for name, unit in (("total/bytes", "bytes"), ("participation/gini", "")):
        found = analysis.summary(variant, setting, name)
        cells.append("-" if found is None else words.number(found.mean.value, unit))
    return cells


def _target_cells(analysis: Analysis, variant: str, setting: str) -> list[str]:
    last = analysis.options.last
    reached = analysis.arrival(variant, setting, arrival_name("rounds", last))
    cells = ["-", "-"]
    if reached is not None:
        median = reached.found.median
        shown = f"> {reached.found.horizon:,.0f}" if math.isinf(median.value) else _median(median)
        cells = [shown, f"{reached.found.reached}/{reached.found.n}"]
    for cost in ("rounds", "models"):
        found = analysis.difference(variant, setting, arrival_name(cost, last))
        cells.append("-" if found is None else words.ratio(found.shown))
    return cells


def _median(median: Estimate) -> str:
    if math.isnan(median.low):
        return f"{median.value:,.0f}"
    high = "never" if math.isinf(median.high) else f"{median.high:,.0f}"
    return f"{median.value:,.0f} [{median.low:,.0f}, {high}]"


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return "" if value is None else value


def _tex(text: str) -> str:
    for plain, escaped in (
        ("\\", r"\textbackslash{}"),
        ("%", r"\%"),
        ("_", r"\_"),
        ("&", r"\&"),
        ("#", r"\#"),
    ):
        text = text.replace(plain, escaped)
    return text.replace(" x", r" $\times$").replace("> ", "$>$ ")
