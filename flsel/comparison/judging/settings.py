"""How a comparison is judged: what may be asked, what its file keeps of that, and what its runs say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

from flsel.arguments import Range, check_settings
from flsel.comparison.judging import formatting
from flsel.comparison.judging.deciding import Deciding
from flsel.comparison.judging.designs import (
    ACCURACY,
    DECIDING,
    DEFAULT_MAX_SEEDS,
    FIRST_LOOK,
    LEVEL,
    MOST_SEEDS,
    Design,
)
from flsel.errors import UserError
from flsel.metrics import SCORE, Score
from flsel.runner.cost_axes import COST_AXES

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


Order = Mapping[tuple[str, str], Sequence[int]]
"""By variant and scenario the seeds of the pairs, in the order in which they were there."""
_OF_DECIDING = ("until_decided", "decides", "max_seeds", "each_scenario")
_USUAL_BASELINE = "Uniform"


def check_decides(name: str | None) -> None:
    """Refuse what cannot decide.

    Raises:
        UserError: If it is neither the score nor a cost that every round has.
    """
    if name not in (None, *DECIDING):
        raise UserError(f"decides must be one of {', '.join(DECIDING)}, got {name!r}.")


def usual_baseline(names: Sequence[str]) -> str:
    """Return the baseline where none is named: Uniform, or the first variant."""
    return _USUAL_BASELINE if _USUAL_BASELINE in names else names[0]


@dataclass(frozen=True)
class JudgingSettings:
    """What may be asked of how a comparison is judged.

    Attributes:
        baseline: The variant that the others are compared with; null is Uniform, or the first.
        target: Test accuracy to reach, in (0, 1], or other score of the runs; null is the run's
            ``evaluation.target``. Without one, it is chosen from the baseline's runs, and the report says so.
        cost: Cost to the target in the verdicts: ``rounds``, ``bytes``, ``bytes_down``,
            ``bytes_up``, ``models``, ``passes``, ``trainings``, ``seconds`` or ``simulated_seconds``; null is
            rounds, or what a resumed comparison has.
        last: Number of evaluations in the mean at the end and in the running mean to the target, >= 1; null
            is 10, or what a resumed comparison has.
        until_decided: Run seeds until every claim is decided: better, worse or equivalent within the margin.
        decides: Measure that ``until_decided`` decides: ``accuracy``, which stands for the runs'
            ``evaluation.score``, or the cost to ``target``: ``rounds``, ``models``, ``bytes``,
            ``bytes_down``, ``bytes_up``, ``trainings``, ``seconds`` or ``simulated_seconds``, which is then
            also the report's ``cost``; null is accuracy.
        margin: Half-width of practical equivalence in points of accuracy, or the unit of another score, > 0;
            null claims no equivalence.
        margin_ratio: Ratio of two costs to the target up to which they are equivalent in practice,
            in (1, 10]: ``1.1`` is 10 %; null claims no equivalence. For ``until_decided`` if a cost decides.
        level: Confidence level of all intervals, in [0.5, 1); one minus it is the chance of any false claim.
            Null is 0.95, or what a resumed comparison has.
        max_seeds: Largest number of seeds of ``until_decided``, 6 to 1000; null is 30.
        each_scenario: Decide every scenario of ``grid`` separately instead of the mean over all of them.

    Raises:
        UserError: If a value is out of range.
    """

    baseline: str | None = None
    target: Annotated[float | None, Range()] = None
    cost: str | None = None
    last: Annotated[int | None, Range(1)] = None
    until_decided: bool = False
    decides: str | None = None
    margin: Annotated[float | None, Range(above=0, high=100)] = None
    margin_ratio: Annotated[float | None, Range(above=1, high=10)] = None
    level: Annotated[float | None, Range(0.5, below=1)] = None
    max_seeds: Annotated[int | None, Range(FIRST_LOOK, MOST_SEEDS)] = None
    each_scenario: bool = False
    _prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_settings(self, self._prefix)
        self.check()

    def check(self) -> None:
        """Refuse costs that there are none of."""
        if self.cost not in (None, *COST_AXES):
            raise UserError(f"cost must be one of {', '.join(COST_AXES)}, got {self.cost!r}.")
        check_decides(self.decides)

    def given(self) -> dict[str, Any]:
        """Return what is asked, by name."""
        asked = {each.name: getattr(self, each.name) for each in fields(JudgingSettings)}
        return {name: value for name, value in asked.items() if value not in (None, False)}


@dataclass(frozen=True)
class Judging(JudgingSettings):
    """How a comparison is judged, as its file keeps it: what was asked, and what was changed since.

    Attributes:
        max_seeds: As in :class:`JudgingSettings`; at most twice 1000, where it was raised.
        first_max_seeds: The maximum as first declared, where it was raised since.
        target_after: Whether the target was given when runs had been seen.
        changes: What was changed when results could be seen.
        judged_again: Commands that judged its runs by their folders, each with the seeds that could be seen.

    Raises:
        UserError: If a value is out of range, or the margin is not of the kind of what decides.
    """

    cost: str = "rounds"
    last: Annotated[int, Range(1)] = 10
    decides: str = ACCURACY
    level: Annotated[float, Range(0.5, below=1)] = LEVEL
    max_seeds: Annotated[int, Range(FIRST_LOOK, 2 * MOST_SEEDS)] = DEFAULT_MAX_SEEDS
    first_max_seeds: Annotated[int | None, Range(FIRST_LOOK)] = None
    target_after: bool = False
    changes: tuple[Change, ...] = ()
    judged_again: tuple[str, ...] = ()
    _prefix: ClassVar[str] = "judging."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of_cost and self.margin is not None:
            raise UserError(
                f"margin is of the runs' score, and {self.decides} decides here: give margin_ratio instead, "
                f"got margin {self.margin:g}."
            )
        if self.until_decided and not self.of_cost and self.margin_ratio is not None:
            raise UserError(
                "margin_ratio is of costs, and the score decides here: give margin instead, or decides, got "
                f"margin_ratio {self.margin_ratio:g}."
            )

    @classmethod
    def declared(cls, wanted: JudgingSettings, target: float | None, variants: Sequence[str] = ()) -> Judging:
        """Return how a new comparison is judged.

        Args:
            wanted: What is asked.
            target: Score to reach, or None.
            variants: Names of the variants, of which the baseline is chosen where seeds run until decided.

        Raises:
            UserError: If something is missing or does not fit together.
        """
        asked = wanted.given()
        other = next((name for name in _OF_DECIDING if name in asked), None)
        if other is not None and not wanted.until_decided:
            raise UserError(f"{other} must be given with until_decided: add --until-decided.")
        if wanted.until_decided and variants:
            asked.setdefault("baseline", usual_baseline(variants))
        made = cls(**asked | {"target": target})
        if not made.of_cost:
            return made
        if target is None:
            raise UserError(
                f"decides {made.decides} needs a target that is declared before the first run: give target, "
                "for example --target 0.8."
            )
        if wanted.cost not in (None, made.decides):
            raise UserError(f"cost must be {made.decides}, which decides, or be left out; got {wanted.cost}.")
        return replace(made, cost=made.decides)

    @property
    def of_cost(self) -> bool:
        """Whether a cost to the target decides, and differences are logarithms of ratios."""
        return self.until_decided and self.decides != ACCURACY

    @property
    def alpha(self) -> float:
        """Chance of any false claim."""
        return round(1 - self.level, 12)

    @property
    def declares_target(self) -> bool:
        """Whether a target was declared before the first run, whatever was asked later."""
        moved = [change for change in self.changes if change.what == "target"]
        return moved[0].before is not None if moved else self.target is not None and not self.target_after

    def margin_of(self, *, cost: bool) -> float | None:
        """Return the half-width of practical equivalence: of the score in its unit, of a cost as a log."""
        if not cost:
            return self.margin
        return None if self.margin_ratio is None else math.log(self.margin_ratio)

    def deciding(self, score: Score = SCORE) -> Deciding:
        """Return what decides: the runs' score, or the cost that was declared."""
        if self.of_cost:
            return Deciding(self.decides, self.last, self.target, score)
        return Deciding(ACCURACY, self.last, score=score)

    def design(self, variants: int, scenarios: int, *, each: bool | None = None) -> Design:
        """Return the rules of a comparison of so many variants whose seeds run until decided.

        Args:
            variants: Number of variants, the baseline among them, >= 2.
            scenarios: Number of scenarios, >= 1.
            each: Whether every scenario is decided for itself; None is as declared.
        """
        each = self.each_scenario if each is None else each
        family = (variants - 1) * (scenarios if each else 1)
        margin = "margin_ratio" if self.of_cost else "margin"
        earlier = tuple(
            (change.seen, change.before and (math.log(change.before) if self.of_cost else change.before))
            for change in self.changes
            if change.what == margin
        )
        return Design(
            max(1, family), self.max_seeds, self.margin_of(cost=self.of_cost),
            first_maximum=self.first_max_seeds, alpha=self.alpha, earlier_margins=earlier,
        )  # fmt: skip

    def changed(self, *changes: Change) -> Judging:
        """Return it with more changes, if results could be seen."""
        return replace(self, changes=(*self.changes, *(change for change in changes if change.seen)))

    def asked_again(self, wanted: JudgingSettings, seen: int, usual: str | None = None) -> Judging:
        """Return it with what is asked later, and with what that changes.

        Args:
            wanted: What is asked.
            seen: Number of seeds whose results could be seen; 0 makes no change.
            usual: The baseline where none is declared.

        Raises:
            UserError: If the rules of a comparison that runs seeds until decided cannot be changed so.
        """
        asked = wanted.given()
        known = {name: getattr(self, name) for name in asked} | {"baseline": self.baseline or usual}
        moved = {name: value for name, value in asked.items() if value != known[name]}
        self._check_kept(asked, moved)
        made = replace(self, **moved, target_after=self.target_after or ("target" in moved and seen > 0))
        if "max_seeds" in moved:
            made = replace(made, first_max_seeds=self.max_seeds)
        changes = (Change(name, known[name], value, seen) for name, value in moved.items())
        return made.changed(*(change for change in changes if change.what != "max_seeds"))

    def _check_kept(self, asked: Mapping[str, Any], moved: Mapping[str, Any]) -> None:
        """Refuse what cannot be changed."""
        if not self.until_decided:
            if given := next((name for name in _OF_DECIDING if name in asked), None):
                raise UserError(
                    f"{given} must be declared before the first run, and this comparison has a fixed number "
                    "of seeds; start a new one."
                )
            return
        kept = ("decides", "baseline", "last", "level", *(("target", "cost") if self.of_cost else ()))
        if name := next((name for name in (*kept, "each_scenario") if name in moved), None):
            held, now = (
                str(x).lower() if isinstance(x, bool) else x for x in (getattr(self, name), moved[name])
            )
            raise UserError(
                f"{name} must stay as declared, {held}, where seeds are run until decided; got {now}."
            )
        first, most = self.first_max_seeds or self.max_seeds, moved.get("max_seeds", self.max_seeds)
        if most != self.max_seeds and not (
            self.first_max_seeds is None and self.max_seeds < most <= 2 * self.max_seeds
        ):
            raise UserError(
                f"max_seeds must be raised once at most, from {first} to at most {2 * first}, got {most}."
            )


@dataclass(frozen=True)
class Options(Judging):
    """How runs are judged, with what they say about it.

    Attributes:
        baseline: The variant that others are compared with.
        asked: How many evaluations ``last`` was to be; runs may be too short for them.
        unpaired: Whether runs that are no pairs are compared unpaired instead of being left out.
        declared_cells: Pairs of variant and scenario that were declared, without those of the baseline.
        variants: Names of all variants that were declared, where seeds run until decided.
        scenarios: Names of all scenarios, likewise.
        order: The order of the pairs so far. A run that is repaired later is appended, never inserted.
        score: What all runs are judged by.
    """

    baseline: str = ""
    asked: int = 10
    unpaired: bool = False
    declared_cells: int = 0
    variants: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()
    order: Order = field(default_factory=dict)
    score: Score = SCORE

    def __post_init__(self) -> None:
        """Check nothing: the settings were."""

    @cached_property
    def claim_design(self) -> Design:
        """The rules of the claims, where seeds run until decided."""
        return self.design(len(self.variants), len(self.scenarios))

    @property
    def looks(self) -> Design | None:
        """The rules of an interval in one scenario where there are several looks; None of one look."""
        if not self.until_decided:
            return None
        return self.design(len(self.variants), len(self.scenarios), each=True)

    @property
    def decides_about(self) -> Deciding:
        """What decides."""
        return self.deciding(self.score)
