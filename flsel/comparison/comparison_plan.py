"""A plan before the runs: what ``compare --until-decided`` may decide, and how many runs it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flsel.comparison.judging import formatting
from flsel.comparison.judging.analysis import Analysis, named
from flsel.comparison.judging.claim_words import difference, margin, subject
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.designs import Design
from flsel.comparison.judging.measures import arrival_name
from flsel.comparison.judging.power import Expected, expected, fixed_seeds, pooled_sd
from flsel.comparison.judging.procedure import guarantee
from flsel.comparison.judging.settings import Judging
from flsel.errors import UserError
from flsel.metrics import SCORE, Score


@dataclass(frozen=True)
class ComparisonPlan:
    """Predict the length and the power of a comparison that adds seeds until its claims are decided.

    Attributes:
        design: Its rules.
        deciding: What decides.
        variants: Number of variants, the baseline among them.
        scenarios: Number of scenarios.
        sd: Standard deviation of the paired differences: in the score's unit, or of the logarithms of the
            ratios of a cost.
        rows: What becomes of a claim, for true differences from none to large.
        fixed: For each row the seeds of a fixed design that decides it with 80 % power; None is more
        than 1,000.
    """

    design: Design
    deciding: Deciding
    variants: int
    scenarios: int
    sd: float
    rows: tuple[Expected, ...]
    fixed: tuple[int | None, ...]

    @property
    def most(self) -> int:
        """Most runs that it can take."""
        return self.design.maximum * self.variants * self.scenarios

    def runs(self, row: Expected) -> float:
        """Return the expected runs if all variants differ so from the baseline, independently."""
        others = self.variants - 1
        return self.scenarios * (others * row.seeds + row.slowest(others))

    def text(self) -> str:
        """Write the plan for a terminal."""
        known = self.design.margin is not None
        width = f"a margin of {margin(self.deciding, self.design)}" if known else "no margin"
        score = self.deciding.score
        size = f"{self.sd:.2f} points" if score.is_share else f"{self.sd:.3g} in {score.words}"
        spread = f"Differences have a standard deviation of {size}."
        if self.deciding.target is not None:
            spread = (
                f"Logarithms of the ratios of {subject(self.deciding)} have a standard deviation of "
                f"{self.sd:.3g}. The plan assumes that every run arrives."
            )
        lines = [
            f"At most {self.most} runs: {self.variants} variants, "
            f"{formatting.count(self.scenarios, 'scenario')}, {self.design.maximum} seeds, with {width}.",
            f"A variant stops at {', '.join(map(str, self.design.looks))} seeds when its claim is decided.",
            guarantee(self.design),
            spread,
            "",
            "true difference   better   worse   equivalent   open   seeds   runs   fixed design",
        ]
        for row, fixed in zip(self.rows, self.fixed, strict=True):
            shares = (row.better, row.worse, row.equivalent, row.open)
            size = f"{row.difference:+.2f} points"
            if self.deciding.target is not None or not score.is_share:
                size = difference(self.deciding, row.difference)
            cells = [size, *(f"{100 * share:.0f} %" for share in shares)]
            cells += [f"{row.seeds:.1f}", f"{self.runs(row):.0f}", "-" if fixed is None else f"{fixed} seeds"]
            widths = (15, 9, 8, 13, 7, 8, 7, 15)
            lines.append(
                "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
            )
        return "\n".join(lines)


def plan_comparison(
    rules: Judging,
    *,
    variants: int,
    scenarios: int = 1,
    sd: float,
    target: float | None = None,
    score: Score = SCORE,
) -> ComparisonPlan:
    """Plan a comparison.

    Args:
        rules: What decides, margin and maximum.
        variants: Number of variants, the baseline among them, >= 2.
        scenarios: Number of scenarios, >= 1.
        sd: Standard deviation of the paired differences, > 0: in the score's unit, or of the logarithms of
            the ratios of a cost.
        target: Score to reach, where a cost decides.
        score: What the runs are judged by.

    Raises:
        UserError: If a value is out of range, or the target is missing.
    """
    if not sd > 0 or math.isinf(sd):
        raise UserError(f"sd must be a number > 0, {_unit(rules, score)}, got {sd:g}.")
    if rules.of_cost and target is None:
        raise UserError(
            f"a plan that decides {rules.decides} needs a target: give target, such as --target 0.8."
        )
    if variants < 2:
        raise UserError(f"variants must be at least 2, with the baseline, got {variants}.")
    design = rules.design(variants, scenarios)
    steps = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    unit = sd if design.margin is None else design.margin
    rows = tuple(expected(step * unit, sd, design) for step in steps)
    fixed = tuple(fixed_seeds(row.difference, design, sd) for row in rows)
    deciding = replace(rules, target=target, last=1).deciding(score)
    return ComparisonPlan(design, deciding, variants, scenarios, sd, rows, fixed)


def _unit(rules: Judging, score: Score) -> str:
    if rules.of_cost:
        return "of the logarithms of the ratios"
    return "in points of accuracy" if score.is_share else f"in {score.words}"


def read_sd(text: str | None, rules: Judging, score: Score) -> float:
    """Read a standard deviation as it was typed.

    Raises:
        UserError: If it is no number.
    """
    try:
        return float(text or "")
    except ValueError as error:
        raise UserError(f"sd must be a number > 0, {_unit(rules, score)}, got {text}.") from error


def pilot_sd(analysis: Analysis, rules: Judging) -> float:
    """Return the standard deviation of paired differences of runs that are there, pooled over variants.

    Raises:
        UserError: If there are no two pairs.
    """
    name, unit = analysis.main, analysis.options.score.scale
    if rules.of_cost:
        name, unit = arrival_name(rules.decides, analysis.options.last), 1.0
    sd = pooled_sd([unit * d.values for _, _, d in named(analysis.differences, name)])
    if not sd > 0:
        raise UserError("a plan needs pairs of runs under two seeds or more that differ, or --sd NUMBER.")
    return sd
