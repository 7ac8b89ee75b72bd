"""Whether a run may get more rounds than it was begun with and equal one that had them from the start."""

from __future__ import annotations

from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.local.program import lr_factors


def check_extension(config: RunConfig, begun_with: int, played: int, *, ended: bool, total_read: bool) -> None:
    """Refuse another number of rounds for a run whose past depends on the one it was begun with.

    Args:
        config: The settings, with the new number of rounds.
        begun_with: The number of rounds it was begun with.
        played: Rounds that are played.
        ended: Whether its target, its simulated time or a callback ended it.
        total_read: Whether the selector has read the number of rounds so far.

    Raises:
        UserError: If it does; the message says why.
    """
    start = f"the run cannot have {config.rounds} rounds instead of {begun_with}"
    if config.rounds < played:
        raise UserError(f"{start}: {played} are played already.")
    if ended:
        raise UserError(
            f"{start}: its target (evaluation.stop_at_target), its simulated "
            "time (time.stop_after_seconds) or a callback ended it."
        )
    if total_read:
        raise UserError(f"{start}: selector {type(config.selector).__name__} looks at the total (view.rounds).")
    schedule = config.local.lr_schedule
    common = min(begun_with, config.rounds)
    if lr_factors(schedule, begun_with)[:common] != lr_factors(schedule, config.rounds)[:common]:
        raise UserError(f"{start}: local.lr_schedule depends on the total.")
