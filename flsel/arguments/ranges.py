"""Declare which numbers an argument takes, which of them a search tries, and which texts are paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Sizes of numbers that neither single precision nor a square in double precision loses.
SMALLEST, LARGEST = 1e-30, 1e30
_MOST_WHOLE = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """Which numbers an argument takes, none infinite or of absurd size; in a list, one or more of such.

    Attributes:
        low: Smallest value.
        high: Largest value.
        above: What all values are larger than, instead of ``low``.
        below: What all values are smaller than, instead of ``high``.
        seconds: What one more takes at the least, for the message where the number is too high.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    seconds: float | None = None

    def __contains__(self, value: float) -> bool:
        # A tiny share is as good as none.
        if absurd(value) and not (self.bounded and abs(value) < 1):
            return False
        over = (self.low is None or value >= self.low) and (self.above is None or value > self.above)
        return (
            over and (self.high is None or value <= self.high) and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        left, right = _number(self.low, self.above), _number(self.high, self.below)
        if left and right:
            return (
                f"in {'[' if self.above is None else '('}{left}, {right}{']' if self.below is None else ')'}"
            )
        if left:
            return f"{'>=' if self.above is None else '>'} {left}"
        return f"{'<=' if self.below is None else '<'} {right}" if right else ""

    @property
    def bounded(self) -> bool:
        """Whether both ends are bounded; messages then need no word "finite"."""
        return str(self).startswith("in ")


@dataclass(frozen=True)
class Tunable:
    """Search range of an argument: what ``flsel tune`` tries where it is not told.

    Attributes:
        low: Smallest value worth trying.
        high: Largest value worth trying, > ``low``.
        log: Search on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class UserPath:
    """Marks a text that may be the path of a file or a folder: ``~`` in front becomes the user's home."""


def absurd(value: Any) -> bool:
    """Tell whether a number is so large or so small that it cannot be meant."""
    if isinstance(value, float):
        return value != 0 and not SMALLEST <= abs(value) <= LARGEST
    return isinstance(value, int) and abs(value) > _MOST_WHOLE


def _number(closed: float | None, open: float | None) -> str:
    bound = open if closed is None else closed
    return "" if bound is None else f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
