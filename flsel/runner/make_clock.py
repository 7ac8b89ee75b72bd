"""The simulated clock of a run, from its settings."""

from __future__ import annotations

import numpy as np

from flsel.arguments.spec import Spec
from flsel.config import RunConfig
from flsel.engine.clock import Clock
from flsel.errors import users_code
from flsel.local.completeness import ClientWork
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
    batches, work = config.local.batches(), client_work(config)
    if work is not None and work.mode.static:
        trained = [work.trained(client, 0, size) for client, size in enumerate(sizes.tolist())]
        work = None
    else:
        of_size = {size: batches.num_examples(size) for size in set(sizes.tolist())}
        trained = [of_size[size] for size in sizes.tolist()]
    with users_code("the devices cannot be drawn"):
        table = Spec.of(config.devices, "devices").build().table(sizes, config.seed)
    clock = Clock(
        table=table,
        rules=config.time,
        seed=config.seed,
        sizes=sizes,
        trained=np.array(trained, dtype=np.int64),
        frozen=config.objective.frozen_models,
        messages=config.objective.messages,
        model=model,
        beside=beside,
        batches=batches,
        work=work,
        update=update,
    )
    clock.check_deadline()
    return clock


def client_work(config: RunConfig) -> ClientWork | None:
    """Return how much of their local training clients do; None if they do all of it."""
    mode = config.completeness
    return None if mode is None else ClientWork(mode, config.local.batches(), config.seed)
