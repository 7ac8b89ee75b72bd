"""Check that a run with more rounds than it began with equals one that had them from the start."""

from __future__ import annotations

from flsel.config import RunConfig
from flsel.engine.server import Server
from flsel.errors import UserError
from flsel.local.schedule import lr_factors
from flsel.runner.checkpoint import Checkpoint


def check_extension(config: RunConfig, state: Checkpoint, server: Server) -> None:
    """Refuse another number of rounds for a run whose past depends on the one it was begun with.

    Args:
        config: The settings, with the new number of rounds.
        state: What the run goes on from.
        server: The same, restored.

    Raises:
        UserError: If it does; the message says why.
    """
    begun_with, done = state.rounds, server.round
    start = f"the run cannot have {config.rounds} rounds instead of {begun_with}"
    if config.rounds < done:
        raise UserError(f"{start}: {done} have been run.")
    reached = server.rounds_to_target is not None and config.evaluation.stop_at_target
    if state.stopped or reached or server.spent:
        raise UserError(
            f"{start}: its target (evaluation.stop_at_target), its simulated time "
            "(time.stop_after_seconds), its budget (stop_after_trainings, stop_after_models, "
            "stop_after_bytes, ...) or a callback ended it."
        )
    if server.total_read:
        name = type(config.selector).__name__
        raise UserError(f"{start}: selector {name} looks at the total (view.rounds).")
    schedule = config.local.lr_schedule
    common = min(begun_with, config.rounds)
    if lr_factors(schedule, begun_with)[:common] != lr_factors(schedule, config.rounds)[:common]:
        raise UserError(f"{start}: local.lr_schedule depends on the total.")
