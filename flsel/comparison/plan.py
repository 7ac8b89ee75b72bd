"""A plan before the runs: what ``compare --until-decided`` may decide, and how many runs it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flsel.comparison.judging import formatting
from flsel.comparison.judging.results import Analysis
from flsel.comparison.sequential.design import Design, UntilDecided
from flsel.comparison.sequential.power import Expected, expected, fixed_seeds, pooled_sd
from flsel.errors import UserError


@dataclass(frozen=True)
class Plan:
    """What to expect of a comparison that adds seeds until its claims are decided.

    Attributes:
        design: Its rules.
        variants: Number of variants, the baseline among them.
        scenarios: Number of scenarios.
        sd: Standard deviation of the paired differences, in points of accuracy.
        rows: What becomes of a claim, for true differences from none to large.
        fixed: For each row the seeds of a fixed design that decides it with 80 % power; None is more
        than 1,000.
    """

    design: Design
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
        margin = "no margin" if self.design.margin is None else f"a margin of {self.design.margin:g} points"
        lines = [
            f"At most {self.most} runs: {self.variants} variants, "
            f"{formatting.count(self.scenarios, 'scenario')}, {self.design.maximum} "
            f"seeds, with {margin}.",
            f"A variant stops at {', '.join(map(str, self.design.looks))} seeds when its claim is decided.",
            "The chance of any false claim is at most 5 %.",
            f"Differences have a standard deviation of {self.sd:.2f} points.",
            "",
            "true difference   better   worse   equivalent   open   seeds   runs   fixed design",
        ]
        for row, fixed in zip(self.rows, self.fixed, strict=True):
            shares = (row.better, row.worse, row.equivalent, row.open)
            cells = [f"{row.difference:+.2f} points", *(f"{100 * share:.0f} %" for share in shares)]
            cells += [f"{row.seeds:.1f}", f"{self.runs(row):.0f}", "-" if fixed is None else f"{fixed} seeds"]
            widths = (15, 9, 8, 13, 7, 8, 7, 15)
            lines.append(
                "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
            )
        return "\n".join(lines)


def make_plan(rules: UntilDecided, *, variants: int, scenarios: int = 1, sd: float) -> Plan:
    """Plan a comparison.

    Args:
        rules: Margin and maximum.
        variants: Number of variants, the baseline among them, >= 2.
        scenarios: Number of scenarios, >= 1.
        sd: Standard deviation of the paired differences in points of accuracy, > 0.

    Raises:
        UserError: If a value is out of range.
    """
    if not sd > 0 or math.isinf(sd):
        raise UserError(f"sd must be a number > 0, in points of accuracy, got {sd:g}.")
    if variants < 2:
        raise UserError(f"variants must be at least 2, with the baseline, got {variants}.")
    design = rules.design(variants, scenarios)
    steps = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    unit = sd if design.margin is None else design.margin
    rows = tuple(expected(step * unit, sd, design) for step in steps)
    fixed = tuple(fixed_seeds(row.difference, design, sd) for row in rows)
    return Plan(design, variants, scenarios, sd, rows, fixed)


def pilot_sd(analysis: Analysis) -> float:
    """Return the standard deviation of paired differences of runs that are there, pooled over variants.

    Raises:
        UserError: If there are no two pairs.
    """
    found = [np.array(d.found.values) * 100 for d in analysis.differences if d.measure == analysis.main]
    sd = pooled_sd(_at_least_two(found))
    if not sd > 0:
        raise UserError("a plan needs pairs of runs under two seeds or more, or --sd POINTS.")
    return sd


def _at_least_two(samples: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [values for values in samples if len(values) > 1]
