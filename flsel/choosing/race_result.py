"""What came of a race: who won, who is equivalent, how all others did, and the winner's config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flsel.choosing.choice_file import Declared
from flsel.choosing.run_race import Standing
from flsel.comparison.judging.deciding import Deciding
from flsel.config import RunConfig
from flsel.runner.cost_axes import COST_AXES

Place = Literal["chosen", "leads", "equivalent", "open", "out", "lost"]
TOTALS = {
    "bytes": COST_AXES["bytes"].columns,
    "questions": ("ledger/passes", "ledger/shadow_trainings"),
    "simulated_seconds": ("clock/seconds",),
}
"""What a run spends, by the columns whose sum it is."""


@dataclass(frozen=True)
class Racer:
    """A line of the table.

    Attributes:
        name: What raced.
        place: ``chosen``, or ``leads`` where nothing is decided; ``equivalent``: within the margin of all
            that are left; ``open``: neither that nor worse; ``out``: worse than another; ``lost``: a run
            diverged or failed.
        seeds: Seeds that it ran with.
        value: Mean of the values over them.
        difference: Mean difference to the chosen one, in points or as the log of a ratio of costs.
        low: Lower bound of it, all bounds together at 95 %.
        high: Upper bound.
        needs: What it needs to know, in words.
        totals: Means of what a run spends: ``bytes``, ``questions`` and ``simulated_seconds``.
        reason: Why it lost.
    """

    name: str
    place: Place
    seeds: int
    value: float
    difference: float
    low: float
    high: float
    needs: str
    totals: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def needed(self) -> int:
        """How many kinds of information it needs."""
        return 0 if self.needs == "nothing" else self.needs.count(",") + 1


@dataclass(frozen=True)
class RaceResult:
    """What came of a race.

    Attributes:
        folder: Its folder.
        declared: What it declares.
        standing: Where it stands.
    """

    folder: Path
    declared: Declared = field(repr=False)
    standing: Standing = field(repr=False)

    @property
    def winner(self) -> str:
        """The variant that leads: the chosen one if :attr:`decided`."""
        return self.declared.names[int(self.standing.race.leader[0])]

    @property
    def decided(self) -> bool:
        """Whether the winner is within the margin of the best."""
        return bool(self.standing.race.decided[0]) and self.standing.whole

    @property
    def runs_used(self) -> int:
        """Runs that were executed."""
        return int(self.standing.race.seeds.sum())

    @property
    def most_runs(self) -> int:
        """Runs of all variants with all seeds."""
        return len(self.declared.names) * len(self.declared.grid.seeds)

    @cached_property
    def racers(self) -> list[Racer]:
        """All that raced: the winner first, who left first last."""
        race, names = self.standing.race, self.declared.names
        found = race.against_leader(self.standing.high, self.standing.low)[:, 0]
        lines = [self._racer(at, found[:, at]) for at in range(len(names))]
        order: dict[Place, int] = {"chosen": 0, "leads": 0, "equivalent": 1, "open": 1, "out": 2, "lost": 3}

        def key(racer: Racer) -> tuple[int, int, float]:
            left = -self.standing.passed.get(racer.name, 0)
            return (
                order[racer.place],
                left,
                -racer.difference if math.isfinite(racer.difference) else math.inf,
            )

        return sorted(lines, key=key)

    def _racer(self, at: int, against: np.ndarray) -> Racer:
        standing, name = self.standing, self.declared.names[at]
        race, n = standing.race, int(standing.race.seeds[0, at])
        place: Place = "open" if race.left[0, at] else "out"
        if race.equivalent[0, at] and place == "open" and self.decided:
            place = "equivalent"
        if at == race.leader[0]:
            place = "chosen" if self.decided else "leads"
        if name in standing.lost:
            place, against = "lost", np.full(3, np.nan)
        values = standing.high[0, at, :n]
        if standing.low is not None:
            values = values[~np.isneginf(standing.low[0, at, :n])]
        value = float(values.mean()) if len(values) and place != "lost" else math.nan
        difference, low, high = (float(end) for end in against)
        needs, reason = self.declared.needs[name], standing.lost.get(name, "")
        return Racer(name, place, n, value, difference, low, high, needs, self._totals(name, n), reason)

    def _totals(self, name: str, n: int) -> dict[str, float]:
        """Return means over runs of what each spends in all."""
        runs = [self.standing.runs.get((name, seed)) for seed in self.declared.grid.seeds[:n]]
        done = [run.columns for run in runs if run is not None and run.status == "complete"]
        return {
            total: float(np.mean([sum(float(c[name][-1]) for name in parts) for c in done]))
            for total, parts in TOTALS.items()
            if done and all(name in c for c in done for name in parts)
        }

    @property
    def needs_least(self) -> Racer:
        """Who needs the fewest kinds of information, then bytes, of the chosen and its equivalents."""
        fit = [racer for racer in self.racers if racer.place in ("chosen", "leads", "equivalent")]
        return min(fit, key=lambda racer: (racer.needed, racer.totals.get("bytes", 0.0)))

    @property
    def simplest_open(self) -> Racer | None:
        """Who needs less than :attr:`needs_least` and was neither shown to be worse nor equivalent."""
        known = self.needs_least.needed
        fit = [racer for racer in self.racers if racer.place == "open" and racer.needed < known]
        return min(fit, key=lambda racer: (racer.needed, -racer.low), default=None)

    @property
    def width(self) -> float:
        """The margin in the unit of values: points, that of another score, or the logarithm of a ratio."""
        margin = self.declared.rules.margin
        return margin if self.deciding.target is None else math.log(margin)

    @property
    def deciding(self) -> Deciding:
        """What is compared."""
        return self.standing.deciding

    @property
    def rivals(self) -> list[str]:
        """Who may be better than the leader by more than the margin."""
        race = self.standing.race
        open_ = race.left[0] & (race.upper[0, int(race.leader[0])] > self.width)
        return [name for name, rival in zip(self.declared.names, open_, strict=True) if rival]

    @property
    def winnable(self) -> bool:
        """Whether a variant that is left could still be shown to be good enough, with more seeds."""
        return not (self.standing.race.over[0] and not self.standing.race.decided[0])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each racer, in the order of the table."""
        return [
            {
                "variant": r.name, "place": r.place, "seeds": r.seeds, "value": r.value,
                "difference": r.difference, "low": r.low, "high": r.high, "needs": r.needs, **r.totals,
                "reason": r.reason,
            }
            for r in self.racers
        ]  # fmt: skip

    @property
    def best(self) -> RunConfig:
        """The settings of the winner."""
        variant = next(v for v in self.declared.grid.variants if v.name == self.winner)
        restored = {"evaluation.stop_at_target": self.declared.rules.stop_at_target}
        return RunConfig.from_dict(self.declared.grid.config, {**variant.changes, **restored})
