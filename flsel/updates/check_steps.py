"""Check a list of steps before a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flsel.errors import UserError
from flsel.updates.update_step import UpdateStep


def check_steps(steps: Sequence[UpdateStep]) -> None:
    """Refuse a list whose order makes no sense.

    Raises:
        UserError: Naming the step.
    """
    bound, server, compressed = math.inf, "", ""
    for at, step in enumerate(steps):
        name = f"updates[{at}] {type(step).__name__}"
        if step.needs_bound and not math.isfinite(bound):
            raise UserError(
                f"{name} must follow a step that bounds the norm of an update: put Clip right before it."
            )
        if server and step.changes_updates and not step.on_server:
            raise UserError(f"{name} must come before {server}, which is a step of the server.")
        if compressed and step.fills:
            raise UserError(f"{name} must come before {compressed}, whose compression it would undo.")
        compressed = name if type(step).message is not UpdateStep.message else compressed
        server = name if step.on_server else server
        bound = step.bound(bound)
