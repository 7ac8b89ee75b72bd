"""The main table for a paper: one column wide, with booktabs' rules and siunitx' numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from flsel.comparison.judging import formatting
from flsel.comparison.judging.analysis import Analysis
from flsel.comparison.judging.claim_words import family, outcome
from flsel.comparison.judging.measures import Target
from flsel.comparison.reporting import tables
from flsel.errors import UserError
from flsel.files.escaping import latex_text
from flsel.runner.cost_axes import COST_AXES

COLUMNS = ("seeds", "accuracy", "difference", "p")
"""Columns that fit one column of a paper; the ratio of the cost follows where the target was declared."""
COST_COLUMNS = ("reached", "cost", "p")
"""Likewise where a cost to the target decides."""
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(,\d{3})*(\.\d+)?(e[+-]?\d+)?")
_SIGNS = {
    ">= ": r"$\ge$", "<= ": r"$\le$", "< ": "$<$", "> ": "$>$", "inf": r"$\infty$", "about": r"$\approx$",
}  # fmt: skip
_BARE = str.maketrans("", "", "()")


def to_latex(analysis: Analysis, columns: Sequence[str] | None = None, *, transposed: bool = False) -> str:
    """Write the main tables, one block a scenario.

    Args:
        analysis: The comparison.
        columns: Any of ``accuracy`` (the runs' score), ``difference``, ``p``, ``cost`` (ratio of the cost to
            the target), ``reached``, ``loss`` and ``seeds``, in the order of the table; None is
            :data:`COLUMNS`, or :data:`COST_COLUMNS` where a cost decides.
        transposed: Write a column for each variant and a row for each number, as for a wide table of few
            numbers.

    Raises:
        UserError: If there is no such column.
    """
    if columns is None:
        columns = COLUMNS if analysis.deciding == analysis.main else COST_COLUMNS
        if columns is COLUMNS and analysis.target is not None and not analysis.target.chosen_after:
            columns = (*COLUMNS, "cost")
    unknown = next((name for name in columns if name not in _CELLS), None)
    if unknown is not None or not columns:
        raise UserError(f"columns must be some of {', '.join(_CELLS)}, got {unknown!r}.")
    heads = [_heading(analysis, name) for name in columns]
    names = [latex_text(variant) for variant in analysis.variants]
    width = 1 + len(names if transposed else heads)
    lines = [
        "% needs \\usepackage{booktabs,graphicx,siunitx}",
        r"\begingroup\footnotesize\setlength{\tabcolsep}{2pt}%",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",  # where names are long
        f"\\begin{{tabular}}{{@{{}}l{'r' * (width - 1)}@{{}}}}",
    ]
    lines += ["\\toprule", " & ".join(["", *names] if transposed else ["variant", *heads]) + r" \\"]
    for scenario in analysis.scenarios:
        lines.append("\\midrule")
        if len(analysis.scenarios) > 1:
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}l}}{{\emph{{{latex_text(scenario)}}}}} \\")
        rows = [
            [_in_latex(name, _CELLS[name](analysis, v, scenario)) for name in columns]
            for v in analysis.variants
        ]
        if transposed:
            rows = [list(row) for row in zip(*rows, strict=True)]
        for head, row in zip(heads if transposed else names, rows, strict=True):
            lines += _stacked(head, row)
    note = rf"\multicolumn{{{width}}}{{@{{}}p{{\linewidth}}@{{}}}}{{{_note(analysis, columns)}}} \\"
    return "\n".join([*lines, "\\bottomrule\\addlinespace[2pt]", note, "\\end{tabular}}\\endgroup"]) + "\n"


def _stacked(head: str, row: Sequence[str]) -> list[str]:
    """Write a row, and below it the intervals of its cells, which so fit a column of a paper."""
    cells = [cell.partition(" [") for cell in row]
    lines = [" & ".join([head, *(value for value, _, _ in cells)]) + r" \\"]
    if any(interval for _, _, interval in cells):
        below = (rf"{{\scriptsize [{interval}}}" if interval else "" for _, _, interval in cells)
        lines.append(" & ".join(["", *below]) + r" \\[1pt]")
    return lines


def _note(analysis: Analysis, columns: Sequence[str]) -> str:
    """Say what the numbers are: the level of intervals, the correction of p, and what is exploratory."""
    last, target = analysis.options.last, analysis.target
    score = analysis.options.score
    what = "Accuracies" if score.is_share else latex_text(score.words[0].upper() + score.words[1:])
    scores = {"accuracy", "difference"} & set(columns)
    said = [f"{what}: mean of the last {last} evaluations."] if scores and last > 1 else []
    said.append(rf"Intervals: {100 * analysis.options.level:g}\,\%.")
    shown = {"difference": (analysis.main, "differences"), "cost": (analysis.to_target, "ratios")}
    designs = {
        words: claim.design
        for name, (measure, words) in shown.items()
        for claim in analysis.claims
        if name in columns and claim.measure == measure and claim.kind == "mean"
    }
    if designs and (corrected := family(next(iter(designs.values())))):
        said.append(f"Those of {' and '.join(designs)} are{corrected.translate(_BARE)}.")
    compared = max((claim.design.comparisons for claim in analysis.claims), default=1)
    if "p" in columns and not analysis.options.until_decided and compared > 1:
        said.append(f"$p$: Holm's correction for {compared} comparisons.")
    said += _changed(analysis, columns)
    of_costs = {"cost", "reached"} & set(columns)
    if of_costs and target is not None:
        label, base = COST_AXES[analysis.options.cost].label, latex_text(analysis.options.baseline)
        mean = "" if last == 1 else f" (mean of {last} evaluations)"
        said.append(f"Target: {_target(target)}{mean}; ratios of {label} to {base}.")
    if of_costs and target is not None and target.chosen_after:
        said.append("Exploratory: the target was chosen after the runs.")
    return " ".join(said)


def _changed(analysis: Analysis, columns: Sequence[str]) -> list[str]:
    """Name the variants whose numbers in the table are exploratory, since something was changed."""
    shown = {analysis.deciding} if {"difference", "p"} & set(columns) else set()
    shown |= {analysis.to_target} if "cost" in columns else set()
    claims = [claim for claim in analysis.claims if claim.measure in shown and claim.kind == "mean"]
    found = dict.fromkeys(latex_text(claim.variant) for claim in claims if claim.exploratory)
    who = f" ({', '.join(found)})" if len(found) < len({claim.variant for claim in claims}) else ""
    return [f"Exploratory{who}: changed when results could be seen."] if found else []


def _heading(analysis: Analysis, name: str) -> str:
    score = analysis.options.score
    base, cost = latex_text(analysis.options.baseline), COST_AXES[analysis.options.cost].label
    if analysis.target is not None and analysis.deciding != analysis.main:
        cost = f"{cost} to {_target(analysis.target)}"
    return {
        "accuracy": r"acc.\ (\%)" if score.is_share else latex_text(score.words),
        "difference": f"vs. {base}",
        "p": tables.decided_heading(analysis) if analysis.options.until_decided else "$p$",
        "cost": f"{cost}, ratio",
        "reached": "reached",
        "loss": "test loss",
        "seeds": "$n$",
    }[name]


def _target(target: Target) -> str:
    return target.shown.replace(" %", r"\,\%")


def _p(analysis: Analysis, variant: str, scenario: str) -> str:
    claim = analysis.claim(variant, scenario, analysis.deciding)
    if claim is None:
        return "-"
    return formatting.p_value(claim.p_holm) if claim.tested else outcome(claim)


def _loss(analysis: Analysis, variant: str, scenario: str) -> str:
    return tables.total(f"loss/last{analysis.options.last}", "nats", analysis, variant, scenario)


_CELLS: Mapping[str, tables.Write] = {
    "accuracy": tables.score, "difference": tables.against, "p": _p,
    "cost": lambda analysis, *cell: tables.ratio_cell(analysis.to_target, analysis, *cell),
    "reached": tables.reached, "loss": _loss, "seeds": lambda analysis, *cell: str(len(analysis.of(*cell))),
}  # fmt: skip


def _in_latex(name: str, cell: str) -> str:
    """Write a cell of the main table with LaTeX's signs and siunitx' numbers."""
    if name in ("seeds", "reached") or cell == "-":
        return cell.replace("-", "--")
    text = _NUMBER.sub(_number, re.sub(r" [%x](?= |$)", "", cell))
    for plain, written in _SIGNS.items():
        text = text.replace(plain, written)
    return text


def _number(found: re.Match[str]) -> str:
    # siunitx drops a plus sign unless it is told not to.
    option = "[retain-explicit-plus]" if found[0].startswith("+") else ""
    return rf"\num{option}{{{found[0].replace(',', '')}}}"
