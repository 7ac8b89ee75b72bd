"""The simulated clock of a run, from its settings."""

from __future__ import annotations

import numpy as np

from flsel.arguments.spec import Spec
from flsel.config import RunConfig
from flsel.engine.clock import Clock
from flsel.errors import users_code
from flsel.metrics import NOTHING, Cost


def make_clock(
    config: RunConfig, sizes: np.ndarray, model: int, beside: Cost = NOTHING, update: int | None = None
) -> Clock | None:
    """Return what the clients' work takes on their simulated devices; None without devices.

    Args:
        config: The settings.
        sizes: Training examples of each client, int64 ``[N]``.
        model: Bytes of a model.
        beside: What else the objective sends at a training.
        update: Bytes of a client's update; None stands for those of a model.

    Raises:
        UserError: If the table of devices is wrong, or no client meets the deadline.
    """
    if config.devices is None:
        return None
    batches = config.local.batches()
    known, of_size = np.unique(sizes, return_inverse=True)
    trained = np.array([batches.num_examples(size) for size in known.tolist()], dtype=np.int64)
    with users_code("the devices cannot be drawn"):
        table = Spec.of(config.devices, "devices").build().table(sizes, config.seed)
    clock = Clock(
        table=table,
        rules=config.time,
        seed=config.seed,
        sizes=sizes,
        trained=trained[of_size.reshape(-1)],
        frozen=config.objective.frozen_models,
        messages=config.objective.messages,
        model=model,
        beside=beside,
        batches=batches,
        update=update,
    )
    clock.check_deadline()
    return clock
