"""The runs behind ``growth.py``: generated clients, and as many of Fashion-MNIST as are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import flsel.selectors
from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.data.data_config import DataConfig, SyntheticConfig
from flsel.data.population import FederatedData
from flsel.models import MLP, LogisticRegression
from flsel.partition import IID, Natural
from flsel.runner import build as building

# 3 + LogNormal(0.5, 0.5): five examples of 60 numbers a client on average.
SIZES = SyntheticConfig(size_mean=0.5, size_std=0.5, size_min=4)
RESAMPLED = 20
# So that twelve rounds hold warm-up, two rehearsals, and choices by the Gaussian process.
OPTIONS = {"FedCor": {"warmup": 4, "delta_t": 4}}


def build(
    data: str, selector: str, clients: int, cohort: int, width: int, root: str | None
) -> building.Built:
    """Build the run of a cell (see ``growth.Cell``)."""
    config = RunConfig(
        seed=1,
        rounds=10_000,
        clients=clients,
        clients_per_round=cohort,
        data=DataConfig(synthetic=SIZES, validation=0.0, server=0.0, test=0.01),
        partition=Natural(),
        model=partial(MLP, hidden=[width]) if width else LogisticRegression,
        local=LocalConfig(batch_size=10, steps=10, optimizer=partial(torch.optim.SGD, lr=0.05)),
        selector=getattr(flsel.selectors, selector)(**OPTIONS.get(selector, {})),
        evaluation=EvaluationConfig(every=10_000),
        accelerator="cpu",
        quiet=True,
    )
    if data == "resampled":
        images = DataConfig(name="fashion_mnist", root=root, validation=0.0, server=0.0)
        config = replace(config, data=images, partition=IID())
        with_few, building.load_data = (
            building.load_data,
            partial(_resampled, building.load_data, clients, cohort),
        )
        try:
            return building.build(config)
        finally:
            building.load_data = with_few
    return building.build(config)


def _resampled(
    load: Callable[..., FederatedData], clients: int, few: int, *settings: Any, **more: Any
) -> FederatedData:
    """Give every client examples of the training set, drawn with replacement."""
    images, partition, _ = settings
    data = load(images, partition, few, **more)
    positions = np.random.default_rng(1).integers(0, len(data.population.y), (clients, RESAMPLED))
    shards = tuple(torch.from_numpy(positions).unbind())
    return replace(data, population=replace(data.population, shards=shards))
