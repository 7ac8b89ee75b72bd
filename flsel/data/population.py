"""What a run trains and measures on: the clients' data and three disjoint sets beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """Labelled examples.

    Attributes:
        x: Inputs, ``[S, ...]``; images are ``uint8`` in ``[S, channels, height, width]``.
        y: Labels, int64 ``[S]`` in ``0..num_classes-1``.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> Examples:
        """Return the examples at ``index`` (int64 ``[n]``), copied."""
        return Examples(self.x[index], self.y[index])


class Normalize(torch.nn.Module):
    """Map raw inputs to what a model sees, on the device: ``(x / 255 - mean) / std`` for uint8 images.

    Inputs that are already floating point pass unchanged but for their dtype: the dataset's code
    prepared them.

    Args:
        mean: Mean per channel of the images scaled to [0, 1].
        std: Standard deviation per channel, > 0.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: tuple[float, ...] = (0.0,), std: tuple[float, ...] = (1.0,)) -> None:
        super().__init__()
        spread = torch.tensor(std, dtype=torch.float64).view(-1, 1, 1)
        centre = torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1)
        self.register_buffer("scale", 1.0 / (255.0 * spread), persistent=False)
        self.register_buffer("shift", -centre / spread, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` (``[..., channels, height, width]`` if uint8) to the dtype of this module."""
        if x.dtype != torch.uint8:
            return x.to(self.scale.dtype) if x.is_floating_point() else x
        return x.to(self.scale.dtype).mul_(self.scale).add_(self.shift)


@dataclass(frozen=True)
class Source:
    """What a dataset provides before it is split over the clients.

    Attributes:
        train: Examples to deal to the clients.
        test: The dataset's own test set, or None where it has none and one must be held out.
        num_classes: C.
        owner: Natural client of every training example, int64 ``[S]`` in ``0..N-1``, or None.
        normalize: Maps raw inputs to model inputs.
        name: Name for messages and run names.
        validation: The dataset's own validation set, or None where one is held out of ``train``.
        test_owner: Natural client of every test example, int64, -1 for none of them, or None.
        true_models: Makes the models that labelled the first n natural clients' examples, float64 ``[n, d]``,
            where they are known, else None.
    """

    train: Examples
    test: Examples | None
    num_classes: int
    owner: np.ndarray | None
    normalize: Normalize
    name: str
    validation: Examples | None = None
    test_owner: np.ndarray | None = None
    true_models: Callable[[int], np.ndarray] | None = None


@dataclass(frozen=True)
class Population:
    """The clients' training data.

    Attributes:
        x: Inputs of all clients, ``[S, ...]``.
        y: Labels, int64 ``[S]``.
        shards: For each of the N clients the positions of its examples in ``x``, int64 ``[n_k]``.
        num_classes: C.
        normalize: Maps raw inputs to model inputs.
        true_models: Makes the model that labelled each client's examples, float64 ``[N, d]``, where known.
    """

    x: Tensor
    y: Tensor
    shards: tuple[Tensor, ...]
    num_classes: int
    normalize: Normalize
    true_models: Callable[[], np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def sizes(self) -> Tensor:
        """Training examples per client, int64 ``[N]``."""
        return torch.tensor([len(shard) for shard in self.shards], dtype=torch.int64)

    def label_counts(self) -> Tensor:
        """Count the labels of every client, int64 ``[N, C]``."""
        counts = torch.zeros(len(self) * self.num_classes, dtype=torch.int64)
        owner = torch.repeat_interleave(torch.arange(len(self)), self.sizes)
        labels = self.y[torch.cat(self.shards)].cpu()
        counts += torch.bincount(owner * self.num_classes + labels, minlength=len(counts))
        return counts.view(len(self), self.num_classes)


@dataclass(frozen=True)
class FederatedData:
    """A population and three disjoint sets that no client trains on.

    Attributes:
        population: The clients' data.
        server: Holdout that the server may use while it selects, or None.
        validation: What searches and early decisions measure on, or None.
        test: What results are reported on; never shown to a selector.
        name: Dataset name.
        client_tests: For each client the positions of its own examples in ``test``, int64 ``[n_k]``, or None
            where nobody has such examples.
    """

    population: Population
    server: Examples | None
    validation: Examples | None
    test: Examples
    name: str
    client_tests: tuple[Tensor, ...] | None = None
