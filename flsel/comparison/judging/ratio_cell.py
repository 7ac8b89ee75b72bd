"""A ratio of costs to the target in a cell of a table: a bound where runs of one side never arrive."""

from __future__ import annotations

import math

from flsel.comparison.judging import formatting
from flsel.comparison.judging.summaries import Analysis


def ratio_cell(analysis: Analysis, variant: str, scenario: str, name: str) -> str:
    """Write a ratio with the interval that decides, or with its own if no claim is about it."""
    found = analysis.difference(variant, scenario, name)
    if found is None:
        return "-"
    late, shown = found.late, analysis.against(variant, scenario, name)
    if late is None or late.exact == late.pairs:
        return formatting.ratio(found.shown if shown is None else shown)
    if late.bound is None:
        pairs = f"in {late.exact} of {late.pairs} pairs"
        return f"about {formatting.ratio(found.shown)} {pairs}" if late.exact else "-"
    bound = late.bound.map(math.exp) if analysis.claim(variant, scenario, name) is None else shown
    if bound is None:
        bound = late.bound.map(math.exp)
    low, high = (f"{bound.low:.2f}", "inf") if late.side == "low" else ("0", f"{bound.high:.2f}")
    ends = "" if math.isnan(bound.low) else f" [{low}, {high}]"
    return f"{'>=' if late.side == 'low' else '<='} {bound.value:.2f}{ends}"
