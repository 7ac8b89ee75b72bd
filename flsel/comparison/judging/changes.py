"""What was changed of a comparison when its results could be seen: it makes claims exploratory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flsel.comparison.judging import formatting
from flsel.metrics import SCORE, Score

WORDS = {
    "target": "the target", "cost": "the cost to the target", "last": "the number of evaluations in a mean",
    "baseline": "the baseline", "level": "the confidence level", "margin": "the margin",
    "margin_ratio": "the margin of ratios", "seeds": "the number of seeds", "variants": "the variants",
    "scenarios": "the scenarios", "runs": "the runs that are judged",
}  # fmt: skip
"""What may be changed, in words."""


@dataclass(frozen=True)
class Change:
    """One change of a comparison.

    Attributes:
        what: What was changed, one of :data:`WORDS`.
        before: Its value before.
        after: Its value after; of variants and scenarios the names that were added.
        seen: Number of seeds whose results could be seen.
    """

    what: str
    before: Any
    after: Any
    seen: int

    def words(self, score: Score) -> str:
        """Write the change of a comparison that is judged by a score."""
        when = f"after {formatting.seeds(self.seen)}"
        if self.what in ("variants", "scenarios"):
            return f"{', '.join(map(str, self.after))} added {when}"
        if self.what == "runs":
            return f"{self.after} of {self.before} declared runs judged again {when}"
        write = score.shown if self.what == "target" else SCORE.shown if self.what == "level" else _plain
        if self.before is None:
            return f"{WORDS[self.what]} of {write(self.after)} given {when}"
        shown = [write(x) for x in (self.before, self.after)]
        return f"{WORDS[self.what]} changed from {shown[0]} to {shown[1]} {when}"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
