"""Load the data of a run, split it over the clients, and move it to the device."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import torch

from flsel.arguments.later import Transform
from flsel.arguments.spec import Spec
from flsel.data.augment import Augment
from flsel.data.data_config import DataConfig
from flsel.data.federate import federate, labels_of, owners_of
from flsel.data.population import UNLABELLED, Examples, FederatedData, Source
from flsel.data.sources import load_source
from flsel.data.trees import Tree
from flsel.errors import UserError, short, users_code
from flsel.local.tasks import Task
from flsel.partition import Natural, Partition
from flsel.rng import generator, repeatable, torch_seed

_LOG = logging.getLogger("flsel")


@users_code("the data cannot be partitioned")
def load_data(
    data: DataConfig,
    partition: Partition,
    clients: int | None,
    *,
    seed: int,
    source: Source | None = None,
) -> FederatedData:
    """Load a run's dataset, hold examples out and split the rest over the clients.

    Args:
        data: Which dataset, and the shares of the holdouts.
        partition: Which client has which examples.
        clients: N; with natural clients None takes all.
        seed: The run's seed.
        source: The dataset that ``data`` names, if it is loaded already.

    Raises:
        UserError: If the dataset, the partition or the number of clients is not right.
    """
    if source is None:
        source = load_source(data, clients=clients, seed=seed)

    def deal(labels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        if clients is None:
            raise UserError("clients must be a number where a partition deals the examples, got null.")
        with repeatable(torch_seed(seed, "partition")):
            return partition(labels, clients, rng)

    if partition.reads_labels and source.train.labels is None:
        raise UserError(f"partition {type(partition).__name__} {UNLABELLED}.")
    labels = labels_of(source.train)
    with repeatable(torch_seed(seed, "partition")):
        owner = partition.owners(labels)
    if owner is None and not partition.after_holdouts:
        owner = owners_of(deal(labels, generator(seed, "partition")), len(labels))
    if owner is not None:
        owner = _checked_owner(owner, len(labels), partition)
        source = replace(source, owner=owner, test_owner=None, true_models=None)
    natural = isinstance(partition, Natural) or owner is not None
    if natural and source.owner is None:
        raise UserError(
            f"partition must be set, since {source.name} has no natural clients: "
            "for example --partition Dirichlet --partition.alpha 0.3."
        )
    if natural:
        _tell_if_cut(source, clients)
        dealt = federate(source, data, deal=None, seed=seed, clients=clients)
    else:
        dealt = federate(source, data, deal=deal, seed=seed)
    if not data.augment:
        return dealt
    named = enumerate(data.augment)
    transforms = [Spec.of(each, f"data.augment[{at}]", Transform).build() for at, each in named]
    return replace(dealt, population=replace(dealt.population, augment=Augment(transforms)))


def sample(data: FederatedData, count: int) -> Tree:
    """Return inputs of the first clients as the model sees them, ``[count, ...]``."""
    population = data.population
    where = torch.cat(population.shards[:count])[:count]
    return population.normalize(population.examples.read(where)[0])


def on_device(data: FederatedData, task: Task) -> FederatedData:
    """Move all data to the task's device and the normalisation to its precision."""
    device = task.device
    dtypes = {p.dtype for p in task.parameters() if p.is_floating_point()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.get_default_dtype()

    def move(examples: Examples) -> Examples:
        return examples.changed(lambda values: values.to(device))

    examples = move(data.population.examples)
    population = replace(
        data.population,
        **vars(examples),
        normalize=data.population.normalize.to(device=device, dtype=dtype),
    )
    return replace(
        data,
        population=population,
        server=None if data.server is None else move(data.server),
        validation=None if data.validation is None else move(data.validation),
        test=move(data.test),
        own_test=None if data.own_test is None else move(data.own_test),
    )


def _checked_owner(owner: object, examples: int, partition: Partition) -> np.ndarray:
    """Check what a partition says about the clients of a data set's examples."""
    array = np.asarray(owner)
    if array.shape != (examples,) or array.dtype.kind not in "iu" or array.min(initial=0) < -1:
        raise UserError(
            f"{type(partition).__name__}.owners must return one client number, or -1, for each of {examples} "
            f"training examples, got {short(array, 60)} of shape {list(array.shape)}."
        )
    return array.astype(np.int64)


def _tell_if_cut(source: Source, clients: int | None) -> None:
    owners = 0 if source.owner is None else int(source.owner.max()) + 1
    if clients is not None and clients < owners:
        _LOG.warning(
            "%s has %d natural clients, %d of them are drawn by the seed; clients: null takes all",
            source.name, owners, clients,
        )  # fmt: skip
