"""The rules by which claims are decided: looks, boundaries, margin."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from scipy import stats

from flsel.arguments import Range, check_settings
from flsel.comparison.judging.boundaries import FIRST_LOOK, boundaries, extended, schedule
from flsel.errors import UserError
from flsel.runner.cost_axes import COST_AXES

ACCURACY = "accuracy"
DECIDING = (ACCURACY, *(axis.name for axis in COST_AXES.values() if axis.always))
"""What may decide: the runs' score, by its usual name, or a cost to a target that every run has."""
LEVEL = 0.95
"""Confidence level of intervals."""
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
