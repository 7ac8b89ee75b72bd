"""A dataset may be given as an object, as a model may."""

from __future__ import annotations

import copy
import gc
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from runs import settings
from torch.utils.data import DataLoader, TensorDataset

import flsel
from flsel.config import RunConfig
from flsel.errors import UserError
from flsel.partition import IID


def blobs(seed: int = 0) -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (120,), generator=generator)
    x = torch.eye(3)[y] + torch.randn(120, 3, generator=generator)
    return TensorDataset(x[30:], y[30:]), TensorDataset(x[:30], y[:30])


class Module(LightningDataModule):
    def setup(self, stage: str | None = None) -> None:
        self.parts = blobs()

    def train_dataloader(self) -> Any:
        return DataLoader(self.parts[0])

    def test_dataloader(self) -> Any:
        return DataLoader(self.parts[1])


def config(folder: Any, dataset: Any) -> flsel.RunConfig:
    return settings(folder, rounds=2, data=flsel.DataConfig(name=dataset), partition=IID())


def test_a_dataset_object_trains_as_its_import_path_does(tmp_path):
    named = flsel.run(config(tmp_path, "test_given_data.blobs"))
    given = flsel.run(config(tmp_path, blobs()))
    for name, column in named.history.items():
        assert name.startswith("seconds/") or np.array_equal(column, given.history[name], equal_nan=True), (
            name
        )
    module = flsel.run(config(tmp_path, Module()))
    assert module.final["test/accuracy"] == given.final["test/accuracy"]
    assert given.dataset == given.config.data.name.rpartition(".")[2]
    assert given.dataset.startswith("TensorDataset_")


def test_it_is_named_by_what_it_holds():
    first, same, other = (flsel.DataConfig(name=blobs(seed)) for seed in (0, 0, 1))
    arrays = flsel.DataConfig(name=tuple(part.numpy() for part in blobs()[0].tensors))
    assert first == same != other
    assert len({first.name, other.name, arrays.name}) == 3
    made = flsel.RunConfig(data=first, partition=IID())
    assert RunConfig.from_dict(made.to_dict()) == made
    assert type(made.to_dict()["data"]["name"]) is str
    for copied in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), replace(made, rounds=3)):
        assert copied.data == first


def test_no_file_holds_its_examples(tmp_path):
    path = str(flsel.DataConfig(name=blobs(7)).name)
    gc.collect()
    with pytest.raises(UserError, match=r"^data\.name TensorDataset_\w+ was given as an object from Python"):
        flsel.run(config(tmp_path, path))


def test_what_is_no_dataset_is_refused_where_it_is_given():
    rule = r"data\.name must be a name, an import path or a dataset, got "
    for wrong in ([1, 2], object(), [], (blobs()[0], "test")):
        with pytest.raises(UserError, match=rule):
            flsel.DataConfig(name=wrong)
    with pytest.raises(UserError, match=r"data\.init_args must be empty"):
        flsel.DataConfig(name=blobs(), init_args={"classes": 3})
