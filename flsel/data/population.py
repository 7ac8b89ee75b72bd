"""What a run trains and measures on: the clients' data and three disjoint sets beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flsel.data.trees import PAIR, Form, Tree, mapped, rebuilt, size_of, tensors
from flsel.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flsel.data.augment import Augment

UNLABELLED = (
    "needs class labels, groups or strata: let targets be class labels, set data.groups to an attribute or "
    "entry of the data set (a whole number for each example), or data.strata to the number of quantiles of a "
    "scalar target"
)
"""How sentences end about what reads labels where the data have none."""
BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Methods of a LightningDataModule or LightningModule that change batches before a step, in their order."""
LARGE_TABLE = 2**26
"""Counts of clients' labels that are only made where something reads them."""


def are_classes(y: Tree) -> bool:
    """Tell whether targets are class labels, int64 ``[S]``."""
    return isinstance(y, Tensor) and y.ndim == 1 and y.dtype == torch.int64


@dataclass(frozen=True)
class Examples:
    """Examples: inputs and targets.

    Attributes:
        x: Inputs, ``[S, ...]``: a tensor, or a tuple or dict of them; images are ``uint8`` in
            ``[S, channels, height, width]``.
        y: Targets, likewise: int64 ``[S]`` are class labels in ``0..num_classes-1``; None for none.
        groups: What stands for labels where partitions and selectors read them, int64 ``[S]``; None takes
            class labels.
    """

    x: Tree
    y: Tree
    groups: Tensor | None = None

    def __len__(self) -> int:
        return size_of(self.x)

    @property
    def labels(self) -> Tensor | None:
        """What partitions and selectors read as labels, int64 ``[S]``; None where there is nothing."""
        return self.groups if self.groups is not None else self.y if are_classes(self.y) else None

    def changed(self, change: Callable[[Tensor], Tensor]) -> Examples:
        """Return examples of which each tensor was changed."""
        return Examples(*(mapped(change, part) for part in (self.x, self.y, self.groups)))

    def read(self, where: Tensor | slice, seed: int = 0) -> tuple[Tree, Tree]:
        """Return raw inputs and targets of some examples, which a data set may have to read.

        Args:
            where: Their positions, int64 ``[n]`` or a slice.
            seed: Of what their reading draws.
        """
        if hasattr(self.x, "read"):
            part: tuple[Tree, Tree] = self.x[where].read(seed)
            return part

        def gather(values: Tensor) -> Tensor:
            # On a CPU, index_select of a flat list gathers images ten times as fast as indexing.
            return (
                values[where] if isinstance(where, slice) else values.index_select(0, where.to(values.device))
            )

        return mapped(gather, self.x), mapped(gather, self.y)

    def take(self, index: Tensor) -> Examples:
        """Return the examples at ``index`` (int64 ``[n]``), copied."""
        return self.changed(lambda values: values[index])


def is_mask(x: Tensor) -> bool:
    """Tell whether one of several inputs stays as it is: booleans, and bytes but for coloured pictures."""
    colours = x.ndim > 3 and 3 in (x.shape[-3], x.shape[-1])
    return x.dtype == torch.bool or (x.dtype == torch.uint8 and not colours)


class Normalize(torch.nn.Module):
    """Map raw inputs to what a model sees, on the device: ``(x / 255 - mean) / std`` for uint8 images.

    Inputs that are already floating point pass unchanged but for their dtype: the dataset's code
    prepared them.

    Args:
        mean: Mean per channel of the images scaled to [0, 1].
        std: Standard deviation per channel, > 0.
        parts: Where inputs are several tensors, what maps each of them.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
        parts: Sequence[Normalize] = (),
    ) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        spread = torch.tensor(std, dtype=torch.float64).view(-1, 1, 1)
        centre = torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1)
        self.register_buffer("scale", 1.0 / (255.0 * spread), persistent=False)
        self.register_buffer("shift", -centre / spread, persistent=False)

    def forward(self, x: Tree) -> Tree:
        """Normalise ``x`` (``[..., channels, height, width]`` if uint8) to the dtype of this module."""
        if not isinstance(x, Tensor):
            named = zip(self.of_tensors(x), tensors(x), strict=True)
            return rebuilt(x, [normalize(tensor) for normalize, tensor in named])
        if x.dtype != torch.uint8:
            return x.to(self.scale.dtype) if x.is_floating_point() else x
        return x.to(self.scale.dtype).mul_(self.scale).add_(self.shift)

    def of_tensors(self, x: Tree) -> list[torch.nn.Module]:
        """Return what maps each tensor of inputs ``[S, ...]``."""
        if isinstance(x, Tensor):
            return [self]
        parts = list(self.parts) or [self] * len(tensors(x))
        return [
            torch.nn.Identity() if is_mask(tensor) else part
            for part, tensor in zip(parts, tensors(x), strict=True)
        ]


@dataclass(frozen=True)
class Source:
    """What a dataset provides before it is split over the clients.

    Attributes:
        train: Examples to deal to the clients.
        test: The dataset's own test set, or None where it has none and one must be held out.
        num_classes: C, the labels that partitions and selectors tell apart; 0 for none.
        owner: Natural client of every training example, int64 ``[S]`` in ``0..N-1``, or None.
        normalize: Maps raw inputs to model inputs.
        name: Name for messages and run names.
        validation: The dataset's own validation set, or None where one is held out of ``train``.
        test_owner: Natural client of every test example, int64, -1 for none of them, or None.
        true_models: Makes the models that labelled the first n natural clients' examples, float64 ``[n, d]``,
            where they are known, else None.
        outputs: Outputs that a model needs for the targets, where they are not C classes; None for C, 0 where
            that is not known.
        form: How the dataset's own examples hold inputs and targets.
        hooks: The LightningDataModule whose :data:`BATCH_HOOKS` change batches; None for none.
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
    outputs: int | None = None
    form: Form = PAIR
    hooks: Any = None


@dataclass(frozen=True)
class Population:
    """The clients' training data.

    Attributes:
        x: Inputs of all clients, ``[S, ...]``, as in :class:`Examples`.
        y: Targets, as in :class:`Examples`.
        shards: For each of the N clients the positions of its examples in ``x``, int64 ``[n_k]``.
        num_classes: C, the labels that partitions and selectors tell apart; 0 for none.
        normalize: Maps raw inputs to model inputs.
        true_models: Makes the model that labelled each client's examples, float64 ``[N, d]``, where known.
        groups: As in :class:`Examples`.
        outputs: As in :class:`Source`.
        form: As in :class:`Source`.
        augment: Transforms the raw inputs of a local step; None leaves them.
        hooks: As in :class:`Source`.
    """

    x: Tree
    y: Tree
    shards: tuple[Tensor, ...]
    num_classes: int
    normalize: Normalize
    true_models: Callable[[], np.ndarray] | None = None
    groups: Tensor | None = None
    outputs: int | None = None
    form: Form = PAIR
    augment: Augment | None = None
    hooks: Any = None

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def sizes(self) -> Tensor:
        """Training examples per client, int64 ``[N]``."""
        return torch.tensor([len(shard) for shard in self.shards], dtype=torch.int64)

    @property
    def examples(self) -> Examples:
        """All examples, those of no client included."""
        return Examples(self.x, self.y, self.groups)

    @property
    def classifies(self) -> bool:
        """Whether targets are class labels."""
        return are_classes(self.y)

    @property
    def wanted_outputs(self) -> int | None:
        """Outputs that a model needs, which it gets as ``num_classes``; None where that is not known."""
        return (self.num_classes if self.outputs is None else self.outputs) or None

    def why_one_by_one(self) -> str | None:
        """Say why clients cannot train in a stack on such examples, or None if they can."""
        if self.augment is not None:
            return "data.augment transforms the examples of each step"
        if hasattr(self.x, "read"):
            return "its examples are read when they are needed (data.workers)"
        return None

    def label_counts(self, clients: Sequence[int] | None = None) -> Tensor:
        """Count labels of some clients.

        Args:
            clients: Their ids; None takes all N, whose table is large where both clients and labels are many.

        Returns:
            The counts, int64 ``[n, C]``; the number of examples, ``[n, 1]``, where there are no labels.
        """
        shards = self.shards if clients is None else [self.shards[client] for client in clients]
        sizes = torch.tensor([len(shard) for shard in shards], dtype=torch.int64)
        labels = self._labels
        if labels is None or not shards:
            return sizes[:, None]
        owner = torch.repeat_interleave(torch.arange(len(shards)), sizes)
        own = labels[torch.cat(list(shards))]
        counts = torch.bincount(owner * self.num_classes + own, minlength=len(shards) * self.num_classes)
        return counts.view(len(shards), self.num_classes)

    @property
    def has_large_table(self) -> bool:
        """Whether the counts of all clients' labels take more memory than is spent unasked."""
        return len(self) * self.num_classes > LARGE_TABLE

    def label_tables(self) -> Iterator[Tensor]:
        """Yield :meth:`label_counts` of all clients, a part of bounded size at a time."""
        most = max(1, LARGE_TABLE // max(1, self.num_classes))
        for first in range(0, len(self), most):
            yield self.label_counts(range(first, min(first + most, len(self))))

    @cached_property
    def _labels(self) -> Tensor | None:
        """The labels in the host's memory, which a device would have to be asked for in every round."""
        labels = self.examples.labels
        return None if labels is None else labels.cpu()

    def require_labels(self, who: str) -> None:
        """Refuse what reads labels where the data have none.

        Args:
            who: What reads them.

        Raises:
            UserError: If there are no class labels, groups or strata.
        """
        if self.examples.labels is None:
            raise UserError(f"{who} {UNLABELLED}.")


@dataclass(frozen=True)
class FederatedData:
    """A population and three disjoint sets that no client trains on.

    Attributes:
        population: The clients' data.
        server: Holdout that the server may use while it selects, or None.
        validation: What searches and early decisions measure on, or None.
        test: What results are reported on; never shown to a selector.
        name: Dataset name.
        client_tests: For each client the positions of its own examples in ``own_test``, else in ``test``,
            int64 ``[n_k]``, or None where nobody has such examples.
        own_test: What was held out of the clients' examples (``data.client_test``), or None.
    """

    population: Population
    server: Examples | None
    validation: Examples | None
    test: Examples
    name: str
    client_tests: tuple[Tensor, ...] | None = None
    own_test: Examples | None = None
