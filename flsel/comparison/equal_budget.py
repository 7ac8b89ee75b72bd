"""An equal budget for all runs of a comparison, in the cost that decides: ``2GB``, ``1200``, ``6h``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from flsel.comparison.judging.deciding import LIMITS
from flsel.config import RunConfig
from flsel.errors import UserError

_BYTES = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600, "days": 86_400}


def with_budget(config: RunConfig, budget: str | None, cost: str) -> RunConfig:
    """Return settings of runs that end when a budget is spent; None changes nothing.

    A run ends with the round in which it has spent as much, so that its total may be a round's cost larger.

    Args:
        config: The settings.
        budget: The budget, with a unit of bytes or of time where its cost has one.
        cost: The cost that decides, or that verdicts are about.

    Raises:
        UserError: If it is no amount of a cost that runs can be limited in.
    """
    if budget is None:
        return config
    setting = LIMITS.get(cost)
    if setting is None:
        raise UserError(f"budget goes with a cost of {', '.join(LIMITS)}, got {budget} of {cost}.")
    amount = _amount(budget, cost)
    if setting == "time.stop_after_seconds":
        return replace(config, time=replace(config.time, stop_after_seconds=float(amount)))
    changes: Any = {setting: int(amount)}
    return replace(config, **changes)


def _amount(text: str, cost: str) -> float:
    units = _BYTES if cost.startswith("bytes") else _SECONDS if cost == "simulated_seconds" else {"": 1}
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-zA-Z]*)\s*", text)
    amount = float(match[1]) * units.get(match[2], 0) if match else 0.0
    if amount < 1:
        known = ", ".join(unit for unit in units if unit)
        like = f" with a unit of {known}" if known else ""
        raise UserError(f"budget must be a number >= 1{like}, of {cost.replace('_', ' ')}, got {text!r}.")
    return amount
