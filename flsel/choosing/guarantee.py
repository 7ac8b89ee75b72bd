"""What a race guarantees, in words: how much better than the leader the best may be, at any look."""

from __future__ import annotations

import math

from flsel.choosing.race import Race
from flsel.comparison.judging.deciding import Deciding

CERTAIN = "with 95 % confidence nothing that raced is more than"


def guarantee(race: Race, deciding: Deciding) -> str:
    """Say how much better than the leader the best may be; nothing where no bound is known."""
    most = float(race.shortfall[0])
    if math.isinf(most):
        return ""
    most = most if deciding.target is None else math.exp(most)
    step = 10 ** (math.floor(math.log10(most)) - 1) if most > 0 else 1.0
    return f"{CERTAIN} {more(deciding, math.ceil(most / step) * step)}"  # never less than the bound


def more(deciding: Deciding, amount: float) -> str:
    """Write a difference in what decides, such as ``2 points of accuracy better``."""
    if deciding.target is not None:
        return f"{amount:.4g} times cheaper in {deciding.name.replace('_', ' ')}"
    if not deciding.score.is_share:
        return f"{amount:.4g} better in {deciding.score.words}"
    return f"{amount:.4g} {'point' if amount == 1 else 'points'} of accuracy better"
