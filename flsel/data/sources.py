"""Load a dataset by the name in the config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flsel.data.dataset_object import HOME, read_given
from flsel.errors import UserError, users_code
from flsel.files import home

if TYPE_CHECKING:
    from flsel.data.data_config import DataConfig
    from flsel.data.population import Source


def load_source(config: DataConfig, *, clients: int | None, seed: int) -> Source:
    """Load or generate the dataset of a run.

    Loaders are imported when they are used: torchvision and image libraries cost seconds.

    Args:
        config: Which dataset.
        clients: N, needed by the synthetic generators; the others ignore it.
        seed: The run's seed; only the synthetic generators draw from it.

    Returns:
        Checked examples: labels in range, inputs and targets finite, images uint8 ``[S, C, H, W]``.

    Raises:
        UserError: If the dataset is missing, unreadable or malformed; the message says where and what to do.
    """
    with users_code(f"data.name {config.name} cannot be loaded"):
        return _grouped(_scaled(_load(config, clients, seed), config), config)


def _load(config: DataConfig, clients: int | None, seed: int) -> Source:
    match config.name:
        case "synthetic":
            return _synthetic(config, clients, seed)
        case "fashion_mnist" | "mnist" | "cifar10" | "cifar100":
            from flsel.data.images import load_torchvision

            return load_torchvision(config)
        case "shakespeare":
            from flsel.data.generated import load_plays
            from flsel.data.images import data_root

            return load_plays(
                home(config.path) if config.path else data_root(config) / config.name,
                required=config.path is not None,
            )
        case "folder":
            from flsel.data.images import load_folder

            size = config.image_size
            return load_folder(_path(config), None if size is None else (size[0], size[1]))
        case "npz":
            from flsel.data.array_files import load_npz

            return load_npz(_path(config), config.shape)
        case "leaf":
            from flsel.data.array_files import load_leaf

            return load_leaf(_path(config), config.shape)
    if config.name.startswith(f"{HOME}."):
        return read_given(config.name)
    from flsel.data.custom import load_custom

    return load_custom(config.name, config.init_args, download=config.download, reading=config.reading())


def _grouped(source: Source, config: DataConfig) -> Source:
    """Apply ``data.strata``."""
    if config.strata is None:
        return source
    if source.train.labels is not None:
        raise UserError(f"data.strata must be null for {config.name}, whose examples have labels or groups.")
    from flsel.data.check_arrays import quantiles_of

    groups = quantiles_of(source.train.y, config.strata)
    return replace(source, train=replace(source.train, groups=groups), num_classes=config.strata)


def _scaled(source: Source, config: DataConfig) -> Source:
    """Apply ``data.pixels``."""
    if config.pixels == "standard":
        return source
    import torch

    from flsel.data.population import Normalize

    if not isinstance(source.train.x, torch.Tensor) or source.train.x.dtype != torch.uint8:
        raise UserError(f"data.pixels must be standard for {config.name}, whose inputs are no images.")
    return replace(source, normalize=Normalize((0.5,), (0.5,)))


def _synthetic(config: DataConfig, clients: int | None, seed: int) -> Source:
    from flsel.data.synthetic import make_fedgs, make_fedpns

    if clients is None or clients < 1:
        given = "null" if clients is None else clients
        raise UserError(f"clients must be at least 1 for synthetic data, got {given}.")
    if config.synthetic.generator == "fedgs":
        return make_fedgs(config.synthetic, clients=clients, seed=seed)
    return make_fedpns(config.synthetic, clients=clients, test=config.test, seed=seed)


def _path(config: DataConfig) -> Path:
    return home(config.path or "")
