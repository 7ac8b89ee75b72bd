"""Words of claims: differences in points of accuracy, or ratios of costs to the target."""

from __future__ import annotations

import math

from flsel.comparison.judging import formatting
from flsel.comparison.judging.claims import Claim
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.decisions import Look
from flsel.comparison.judging.designs import ALPHA, Design
from flsel.runner.cost_axes import COST_AXES


def subject(deciding: Deciding) -> str:
    """Say what decides: ``test accuracy``, ``rounds to 80 %``."""
    if deciding.target is None:
        return "test accuracy"
    return f"{COST_AXES[deciding.name].label} to {100 * deciding.target:g} %"


def measured(claim: Claim) -> str:
    """Say how the measure is taken: the evaluations in it, and what a run counts as that never arrives."""
    last = claim.deciding.last
    if claim.deciding.target is None:
        return f"mean of the last {last} evaluations"
    return f"mean of {last} evaluations" if last > 1 else "first evaluation at the target"


def difference(deciding: Deciding, value: float) -> str:
    """Write a difference in the unit of what decides: ``+1.2 points``, ``0.71 x``."""
    return f"{value + 0.0:+.1f} points" if deciding.target is None else formatting.times(math.exp(-value))


def ends(deciding: Deciding, low: float, high: float) -> str:
    """Write an interval: ``+0.4 to +4.9`` points within what is possible, ``0.60 to 0.85`` of a ratio."""
    if deciding.target is None:
        return f"{max(low, -100.0):+.1f} to {min(high, 100.0):+.1f}"
    return " to ".join(formatting.times(math.exp(-end)).removesuffix(" x") for end in (high, low))


def margin(deciding: Deciding, design: Design) -> str:
    """Write the margin of practical equivalence, which the design has: ``2 points``, ``1.1 x``."""
    width = design.margin or 0.0
    return f"{width:g} points" if deciding.target is None else f"{math.exp(width):.4g} x"


def family(design: Design) -> str:
    """Say for what an interval holds."""
    m = design.comparisons
    return "for all looks" if m == 1 else f"for all {m} comparisons and all looks"


def outer(claim: Claim, end: Look) -> str:
    """Write the estimate of a look with the interval that decides its direction."""
    level = f"{100 * (1 - ALPHA):.0f} % interval {ends(claim.deciding, end.low, end.high)}"
    if math.isnan(end.mean):
        return f"{level} ({family(claim.design)})"
    return f"{difference(claim.deciding, end.mean)}, {level} ({family(claim.design)})"


def arrivals(claim: Claim, end: Look, baseline: str) -> str:
    """Say how many runs arrived, and what that leaves of the ratio of arrivals; nothing of accuracy."""
    if claim.deciding.target is None:
        return ""
    runs, out = end.n * claim.runs, ""
    if claim.left_out:
        out = f" Left out: {formatting.count(claim.left_out, 'pair')} in which neither arrives."
    ours, theirs = claim.arrived(end.n)
    if ours == theirs == runs:
        return f" Every run arrives.{out}"
    said = f" {claim.variant} arrives in {ours} of {runs} runs, {baseline} in {theirs}."
    if ours < runs and theirs < runs:
        return f"{said} As runs of both never arrive, no direction is claimed.{out}"
    return f"{said} So the ratio has no {'upper' if ours < runs else 'lower'} bound.{out}"
