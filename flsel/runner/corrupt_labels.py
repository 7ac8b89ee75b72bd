"""The labels that clients train on, after the steps that change labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flsel.data.population import FederatedData, Population
from flsel.errors import UserError
from flsel.updates import Senders, UpdateStep


def with_steps_labels(data: FederatedData, steps: Sequence[UpdateStep], seed: int) -> FederatedData:
    """Return the data with the clients' labels after the steps; the same object if none changes labels.

    Args:
        data: The clients' data.
        steps: The steps of the run's updates.
        seed: The run's seed.

    Raises:
        UserError: If a step's labels are none, or clients share examples.
    """
    population = data.population
    everyone, total = torch.arange(len(population)), len(population)
    for place, step in enumerate(steps):
        if not step.changes_labels:
            continue
        labels = _labels(population, type(step).__name__)
        y, of = labels.clone(), Senders(everyone, [0] * total, total, seed, place)
        for client, shard in enumerate(population.shards):
            own = labels[shard]
            y[shard] = _checked(step, step.labels(own, client, of, population.num_classes), own, population)
        population = replace(population, y=y)
    return data if population is data.population else replace(data, population=population)


def _labels(population: Population, name: str) -> Tensor:
    """Return the labels, int64 ``[S]``, of data with a class for each example, which one client has."""
    y = population.y
    if not isinstance(y, Tensor) or not population.classifies:
        raise UserError(
            f"updates {name} must have class labels as targets, which it changes, and this data set has "
            "others: use kind sign or gaussian."
        )
    if int(torch.bincount(torch.cat(population.shards)).max()) > 1:
        raise UserError(f"updates {name} must have clients that share no examples, and some do.")
    return y


def _checked(step: UpdateStep, labels: object, given: Tensor, population: Population) -> Tensor:
    fits = isinstance(labels, Tensor) and labels.shape == given.shape and labels.dtype == given.dtype
    if not isinstance(labels, Tensor) or not fits or not _are_labels(labels, population.num_classes):
        raise UserError(
            f"{type(step).__name__}.labels must return a label of 0 to {population.num_classes - 1} for each "
            "example that it was given."
        )
    return labels


def _are_labels(y: Tensor, classes: int) -> bool:
    return len(y) == 0 or bool((y >= 0).all() and (y < classes).all())
