"""What a comparison that decides by itself declares before its first run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from scipy import stats

from flsel.arguments import Range, check_settings
from flsel.comparison.judging.boundaries import FIRST_LOOK, MOST_SEEDS, boundaries, extended, schedule
from flsel.errors import UserError
from flsel.runner.cost_axes import COST_AXES

ACCURACY = "accuracy"
DECIDING = (ACCURACY, *(axis.name for axis in COST_AXES.values() if axis.always))
"""What may decide: the runs' score, by its usual name, or a cost to a target that every run has."""
ALPHA = 0.05
"""Chance that any claim of a comparison is false, of whatever kind and at whatever look it stops."""
DEFAULT_MAX_SEEDS = 30
GIVE_UP_FROM = 8
"""The first look at which a claim may be given up."""
FEWEST_SEEDS = 5
"""Pairs below which one look claims nothing: with fewer, coverage rests on normality alone."""


@dataclass(frozen=True)
class Design:
    """The rules by which every claim of a comparison is decided.

    Attributes:
        comparisons: Claims of the family, >= 1.
        maximum: Most seeds, >= 6; of one look its seeds, >= 2.
        margin: Half-width of practical equivalence, in units of the differences, > 0; None claims none.
        give_up: A claim is given up where the chance to decide it by the maximum is below this, in [0, 1).
        first_maximum: The maximum as first declared, where it was raised since; None where it was not.
        alpha: Chance that any claim of the family is false, in (0, 1).
        once: Whether there is one look, at the maximum, as with a fixed number of seeds.
        earlier_margins: Margins that held before the present one, each behind the last look that it judged.

    Raises:
        UserError: If a value is out of range.
    """

    comparisons: Annotated[int, Range(1)]
    maximum: Annotated[int, Range(2)] = 30
    margin: Annotated[float | None, Range(above=0)] = None
    give_up: Annotated[float, Range(0, below=1)] = 0.05
    first_maximum: Annotated[int | None, Range(FIRST_LOOK)] = None
    alpha: Annotated[float, Range(above=0, below=1)] = ALPHA
    once: bool = False
    earlier_margins: tuple[tuple[int, float | None], ...] = ()

    def __post_init__(self) -> None:
        check_settings(self)
        if self.maximum < FIRST_LOOK and not self.once:
            raise UserError(f"maximum must be a whole number >= {FIRST_LOOK}, got {self.maximum}.")

    @classmethod
    def fixed(cls, n: int, comparisons: int, margin: float | None = None, alpha: float = ALPHA) -> Design:
        """Return the rules of a fixed number of seeds, >= 2: one look."""
        return cls(comparisons, n, margin, alpha=alpha, once=True)

    def margin_at(self, n: int) -> float | None:
        """Return the margin by which a look is judged; a new one judges later looks only."""
        return next((margin for until, margin in self.earlier_margins if n <= until), self.margin)

    @property
    def fewest(self) -> int:
        """The fewest pairs that carry a claim."""
        return FEWEST_SEEDS if self.once else FIRST_LOOK

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds at which claims are judged."""
        if self.once:
            return (self.maximum,)
        if self.first_maximum is None:
            return schedule(self.maximum)
        return extended(self.first_maximum, self.maximum)

    @cached_property
    def outer(self) -> dict[int, float]:
        """Boundaries by look of the interval that decides the direction: level alpha / 2m on each side."""
        return self._boundaries(self.alpha / (2 * self.comparisons))

    @cached_property
    def inner(self) -> dict[int, float]:
        """Boundaries by look of the interval that decides equivalence: level alpha / m on each side."""
        return self._boundaries(self.alpha / self.comparisons)

    def _boundaries(self, level: float) -> dict[int, float]:
        if self.once:
            return {self.maximum: float(stats.t.ppf(1 - level, self.maximum - 1))}
        found = boundaries(level, self.looks, self.first_maximum or self.maximum)
        return dict(zip(self.looks, found, strict=True))


def check_decides(name: str) -> None:
    """Refuse what cannot decide.

    Raises:
        UserError: If it is neither accuracy nor an axis of costs that every run has.
    """
    if name not in DECIDING:
        raise UserError(f"decides must be one of {', '.join(DECIDING)}, got {name!r}.")


@dataclass(frozen=True)
class UntilDecided:
    """What a comparison that adds seeds until its claims are decided declares, as its file keeps it.

    Attributes:
        margin: Half-width of practical equivalence in the score's unit (points of accuracy), > 0; None claims
            no equivalence.
        max_seeds: Most seeds, >= 6; at most twice 1000, where it was raised.
        first_max_seeds: The maximum as first declared, where it was raised since.
        each_scenario: Whether every scenario is decided for itself, and not the mean over all of them.
        decides: What claims are about: ``accuracy``, or the cost to the target, one of :data:`DECIDING`.
        margin_ratio: Largest ratio of two costs that are equivalent in practice, in (1, 10]; None claims no
            equivalence of costs.
        level: Confidence level: one minus it is the chance of any false claim.
        earlier_margins: Margins that held before, each behind the last look that it judged.

    Raises:
        UserError: If a value is out of range, or the margin is not of the kind of what decides.
    """

    margin: Annotated[float | None, Range(above=0, high=100)] = None
    max_seeds: Annotated[int, Range(FIRST_LOOK, 2 * MOST_SEEDS)] = 30
    first_max_seeds: Annotated[int | None, Range(FIRST_LOOK)] = None
    each_scenario: bool = False
    decides: str = ACCURACY
    margin_ratio: Annotated[float | None, Range(above=1, high=10)] = None
    level: Annotated[float, Range(0.5, below=1)] = 0.95
    earlier_margins: tuple[tuple[int, float | None], ...] = ()

    def __post_init__(self) -> None:
        check_settings(self)
        check_decides(self.decides)
        if self.of_cost and self.margin is not None:
            raise UserError(
                f"margin is of the runs' score, and {self.decides} decides here: give margin_ratio instead, "
                f"got margin {self.margin:g}."
            )
        if not self.of_cost and self.margin_ratio is not None:
            raise UserError(
                "margin_ratio is of costs, and the score decides here: give margin instead, or decides, got "
                f"margin_ratio {self.margin_ratio:g}."
            )

    @property
    def of_cost(self) -> bool:
        """Whether a cost to the target decides, and differences are logarithms of ratios."""
        return self.decides != ACCURACY

    def design(self, variants: int, scenarios: int, *, each: bool | None = None) -> Design:
        """Return the rules for a comparison of so many variants, the baseline among them.

        Args:
            variants: Number of variants, >= 2.
            scenarios: Number of scenarios, >= 1.
            each: Whether every scenario is decided for itself; None is as declared.
        """
        each = self.each_scenario if each is None else each
        family = (variants - 1) * (scenarios if each else 1)
        margin = self.margin if self.margin_ratio is None else math.log(self.margin_ratio)
        earlier = tuple(
            (n, width and (math.log(width) if self.of_cost else width)) for n, width in self.earlier_margins
        )
        return Design(
            max(1, family), self.max_seeds, margin, first_maximum=self.first_max_seeds,
            alpha=round(1 - self.level, 12), earlier_margins=earlier,
        )  # fmt: skip

    def with_margins(self, margin: float | None, margin_ratio: float | None, seen: int) -> UntilDecided:
        """Return them with another margin, by which later looks than those seen are judged; None keeps it.

        Args:
            margin: New margin in the score's unit.
            margin_ratio: New margin of ratios.
            seen: Pairs at the last look so far.
        """
        made = replace(self, margin=margin or self.margin, margin_ratio=margin_ratio or self.margin_ratio)
        before = self.margin_ratio if self.of_cost else self.margin
        if not seen or (made.margin, made.margin_ratio) == (self.margin, self.margin_ratio):
            return made
        return replace(made, earlier_margins=(*self.earlier_margins, (seen, before)))

    def raised(self, maximum: int) -> UntilDecided:
        """Return them with more seeds, which spends the reserve: once, to at most twice as many.

        Raises:
            UserError: If it was raised before, is lowered, or is more than doubled.
        """
        if maximum == self.max_seeds:
            return self
        if self.first_max_seeds is not None or not self.max_seeds < maximum <= 2 * self.max_seeds:
            raise UserError(
                f"max_seeds must be raised once at most, from {self.first_max_seeds or self.max_seeds} to "
                f"at most {2 * (self.first_max_seeds or self.max_seeds)}, got {maximum}."
            )
        return replace(self, max_seeds=maximum, first_max_seeds=self.max_seeds)
