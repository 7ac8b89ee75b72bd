"""Runs to measure: their settings and images, and how to wait for the device."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from flsel.config import RunConfig
from flsel.config.groups import LocalConfig
from flsel.data.data_config import DataConfig
from flsel.models import MLP
from flsel.partition import IID

IMAGES = 60_000
FASHION_MLP = partial(MLP, hidden=[64, 30])


def image_data(root: str | None, folder: Path) -> DataConfig:
    """Return Fashion-MNIST if its folder is known, else random images of the same shape; no holdouts."""
    if root is not None:
        return DataConfig(name="fashion_mnist", root=root, validation=0.0, server=0.0)
    path = folder / "random_images.npz"
    if not path.exists():
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (IMAGES + 10_000, 1, 28, 28), dtype=np.uint8)
        y = rng.integers(0, 10, len(x))
        np.savez(path, x_train=x[:IMAGES], y_train=y[:IMAGES], x_test=x[IMAGES:], y_test=y[IMAGES:])
    return DataConfig(name="npz", path=str(path), validation=0.0, server=0.0)


def image_run(
    model: Callable[[], nn.Module], data: DataConfig, local: LocalConfig, *, clients: int, accelerator: str
) -> RunConfig:
    """Return the settings of a run with equally many random images at every client and 10 clients a round."""
    return RunConfig(
        seed=1,
        clients=clients,
        clients_per_round=10,
        data=data,
        partition=IID(),
        model=model,
        local=local,
        accelerator=accelerator,
        quiet=True,
    )


def wait(device: torch.device) -> None:
    """Return when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def start(options: argparse.Namespace) -> None:
    """Apply the options that concern the whole process."""
    torch.set_num_threads(options.threads)
