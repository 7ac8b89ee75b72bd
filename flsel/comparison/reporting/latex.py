"""The main table for a paper: one column wide, with booktabs' rules and siunitx' numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from flsel.comparison.judging.claim_words import outcome, withheld
from flsel.comparison.judging.estimates import Estimate
from flsel.comparison.judging.measures import Target
from flsel.comparison.judging.summaries import Analysis
from flsel.comparison.reporting import tables
from flsel.errors import UserError
from flsel.files.escaping import latex_text
from flsel.runner.cost_axes import COST_AXES

Cell = Callable[[Analysis, str, str], str]
COLUMNS = ("seeds", "accuracy", "difference", "p")
"""Columns that fit one column of a paper; the ratio of the cost follows where the target was declared."""
COST_COLUMNS = ("reached", "cost", "p")
"""Likewise where a cost to the target decides."""


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
        "% needs \\usepackage{booktabs,siunitx}",
        r"\begingroup\footnotesize\setlength{\tabcolsep}{2pt}%",
        f"\\begin{{tabular}}{{@{{}}l{'r' * (width - 1)}@{{}}}}",
    ]
    lines += ["\\toprule", " & ".join(["", *names] if transposed else ["variant", *heads]) + r" \\"]
    for scenario in analysis.scenarios:
        lines.append("\\midrule")
        if len(analysis.scenarios) > 1:
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}l}}{{\emph{{{latex_text(scenario)}}}}} \\")
        cells = [[_CELLS[name](analysis, v, scenario) for name in columns] for v in analysis.variants]
        rows = [["--" if cell == "-" else cell for cell in row] for row in cells]
        if transposed:
            rows = [list(row) for row in zip(*rows, strict=True)]
        for head, row in zip(heads if transposed else names, rows, strict=True):
            lines += _stacked(head, row)
    note = rf"\multicolumn{{{width}}}{{@{{}}p{{\linewidth}}@{{}}}}{{{_note(analysis, columns)}}} \\"
    return "\n".join([*lines, "\\bottomrule", note, "\\end{tabular}\\endgroup"]) + "\n"


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
    said = [] if last == 1 else [f"{_plural(analysis)}: mean of the last {last} evaluations."]
    said.append(rf"Intervals: {100 * analysis.options.level:g}\,\%.")
    compared = [claim.design.comparisons for claim in analysis.claims]
    if "difference" in columns and max(compared, default=1) > 1:
        said.append(f"Those of differences are corrected for {max(compared)} comparisons.")
    if "p" in columns and analysis.options.sequential is None and max(compared, default=1) > 1:
        said.append(f"$p$: Holm's correction for {max(compared)} comparisons.")
    if any(claim.exploratory for claim in analysis.claims):
        said.append("Exploratory: what is compared was changed when results could be seen.")
    of_costs = {"cost", "reached"} & set(columns)
    if of_costs and target is not None:
        label, base = COST_AXES[analysis.options.cost].label, latex_text(analysis.options.baseline)
        said.append(rf"Target: {_target(target)}; ratios of {label} to {base}.")
    if of_costs and target is not None and target.chosen_after:
        said.append("Exploratory: the target was chosen after the runs.")
    return " ".join(said)


def _heading(analysis: Analysis, name: str) -> str:
    score = analysis.options.score
    base, cost = latex_text(analysis.options.baseline), COST_AXES[analysis.options.cost].label
    if analysis.target is not None and analysis.deciding != analysis.main:
        cost = f"{cost} to {_target(analysis.target)}"
    return {
        "accuracy": r"acc.\ (\%)" if score.is_share else latex_text(score.words),
        "difference": f"vs. {base}",
        "p": "$p$" if analysis.options.sequential is None else "decided",
        "cost": f"{cost}, ratio",
        "reached": "reached",
        "loss": "test loss",
        "seeds": "$n$",
    }[name]


def _plural(analysis: Analysis) -> str:
    score = analysis.options.score
    return "Accuracies" if score.is_share else latex_text(score.words[0].upper() + score.words[1:])


def _target(target: Target) -> str:
    return target.shown.replace(" %", r"\,\%")


def _accuracy(analysis: Analysis, variant: str, scenario: str) -> str:
    found = analysis.summary(variant, scenario, analysis.main)
    return "-" if found is None else _in_units(analysis, found.mean)


def _difference(analysis: Analysis, variant: str, scenario: str) -> str:
    found = analysis.against(variant, scenario, analysis.main)
    return "-" if found is None else _in_units(analysis, found, sign=True)


def _p(analysis: Analysis, variant: str, scenario: str) -> str:
    claim = analysis.claim(variant, scenario, analysis.deciding)
    if claim is not None and (withheld(claim) or not claim.design.once):
        return outcome(claim).partition(" (")[0]
    if claim is None or math.isnan(claim.p_holm):
        return "-"
    return r"$<$\num{0.001}" if claim.p_holm < 0.001 else _number(claim.p_holm, 3)


def _cost(analysis: Analysis, variant: str, scenario: str) -> str:
    text = tables.ratio_cell(analysis.to_target, analysis, variant, scenario).replace(" x", "")
    for plain, written in ((">=", r"$\ge$"), ("<=", r"$\le$"), ("inf", r"$\infty$"), ("about", r"$\approx$")):
        text = text.replace(plain, written)
    return text


def _loss(analysis: Analysis, variant: str, scenario: str) -> str:
    found = analysis.summary(variant, scenario, f"loss/last{analysis.options.last}")
    return "-" if found is None else _number(found.mean.value, None)


_CELLS: Mapping[str, Cell] = {
    "accuracy": _accuracy, "difference": _difference, "p": _p, "cost": _cost, "reached": tables.reached,
    "loss": _loss, "seeds": lambda analysis, variant, scenario: str(len(analysis.of(variant, scenario))),
}  # fmt: skip


def _number(value: float, digits: int | None, *, sign: bool = False) -> str:
    """Write a number with digits behind the point; None writes three that count."""
    # Added to zero, what is rounded to it loses its sign.
    shown = value if digits is None else round(value, digits) + 0.0
    form = f".{digits}f" if digits is not None else ".0f" if abs(value) >= 100 else "#.3g"
    # siunitx drops a plus sign unless it is told not to.
    option = "[retain-explicit-plus]" if sign and shown >= 0 else ""
    return rf"\num{option}{{{shown:{'+' if sign else ''}{form}}}}"


def _in_units(analysis: Analysis, found: Estimate, *, sign: bool = False) -> str:
    """Write a score or a difference: of shares in per cent with one digit."""
    score = analysis.options.score
    return _with_interval(found.map(lambda x: score.scale * x), 1 if score.is_share else None, sign=sign)


def _with_interval(found: Estimate, digits: int | None, *, sign: bool = False) -> str:
    head = _number(found.value, digits, sign=sign)
    if math.isnan(found.low):
        return head
    return f"{head} [{_number(found.low, digits)}, {_number(found.high, digits)}]"
