"""The data of a run: loaded, held out, dealt to the clients, and moved to where it trains."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from flsel.config import RunConfig
from flsel.data.federate import federate
from flsel.data.population import Examples, FederatedData, Source
from flsel.data.sources import load_source
from flsel.errors import UserError, users_code
from flsel.local.tasks import Task
from flsel.partition import Natural
from flsel.rng import repeatable, torch_seed

_LOG = logging.getLogger("flsel")


@users_code("the data cannot be partitioned")
def load_data(config: RunConfig, source: Source | None = None) -> FederatedData:
    """Load a run's dataset, hold examples out and deal the rest to the clients.

    Args:
        config: The settings.
        source: The dataset, if it is at hand already; it is what the settings name.

    Raises:
        UserError: If the dataset, the partition or the number of clients is not right.
    """
    if source is None:
        source = load_source(config.data, clients=config.clients, seed=config.seed)
    natural = isinstance(config.partition, Natural)
    if natural and source.owner is None:
        raise UserError(
            f"partition must be set, since {source.name} has no natural clients: "
            "for example --partition Dirichlet --partition.alpha 0.3."
        )
    if natural:
        _tell_if_cut(source, config.clients)
        return federate(source, config.data, deal=None, seed=config.seed, clients=config.clients)
    if config.clients is None:
        raise UserError("clients must be a number where a partition deals the examples, got null.")
    clients = config.clients

    def deal(labels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        with repeatable(torch_seed(config.seed, "partition")):
            return config.partition(labels, clients, rng)

    return federate(source, config.data, deal=deal, seed=config.seed)


def sample(data: FederatedData, count: int) -> Tensor:
    """Return inputs of the first clients as the model sees them, ``[count, ...]``."""
    population = data.population
    where = torch.cat(population.shards[:count])[:count]
    found: Tensor = population.normalize(population.x[where])
    return found


def on_device(data: FederatedData, task: Task) -> FederatedData:
    """Move all data to the task's device and the normalisation to its precision."""
    device = task.device
    dtype = next((p.dtype for p in task.parameters() if p.is_floating_point()), torch.get_default_dtype())
    population = replace(
        data.population,
        x=data.population.x.to(device),
        y=data.population.y.to(device),
        normalize=data.population.normalize.to(device=device, dtype=dtype),
    )

    def move(examples: Examples) -> Examples:
        return Examples(examples.x.to(device), examples.y.to(device))

    return replace(
        data,
        population=population,
        server=None if data.server is None else move(data.server),
        validation=None if data.validation is None else move(data.validation),
        test=move(data.test),
    )


def _tell_if_cut(source: Source, clients: int | None) -> None:
    owners = 0 if source.owner is None else int(source.owner.max()) + 1
    if clients is not None and clients < owners:
        _LOG.warning(
            "%s has %d natural clients, the first %d are used; clients: null takes all",
            source.name, owners, clients,
        )  # fmt: skip
