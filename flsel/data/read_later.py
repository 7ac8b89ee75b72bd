"""Examples that a dataset reads when they are needed: random transforms, variable lengths, any amount."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flsel.data.check_arrays import as_inputs, as_targets, fits_memory
from flsel.data.materialise import (
    Read,
    Reading,
    attribute,
    counted,
    example_at,
    makes_batches,
    parsed,
    whole_numbers,
)
from flsel.data.trees import Form, Tree, rebuilt, tensors
from flsel.errors import UserError, users_code
from flsel.rng import repeatable, torch_seed

_SAMPLE = 8  # Examples that tell datasets apart; each is read twice.
_TARGETS = ("targets", "labels", "y")  # what torchvision's datasets call all class labels


class Later:
    """Stands for the inputs of a dataset that is read when they are needed.

    Indexing it gives a part of it, and :meth:`read` the examples of a part. What an example's reading draws
    depends on the given seed and its place in the batch.

    Args:
        dataset: A map-style ``Dataset``.
        reading: Which entries are used, and how many processes read.
        where: What it is, for messages.
        index: Examples of the dataset, int64 ``[n]``.
        content: A hash of some examples, which tells datasets of one class apart.
    """

    def __init__(self, dataset: Any, reading: Reading, where: str, index: Tensor, content: str = "") -> None:
        self._dataset, self._reading, self._where, self._index = dataset, reading, where, index
        self._content = content

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: Any) -> Later:
        return Later(self._dataset, self._reading, self._where, self._index[index], self._content)

    def __repr__(self) -> str:
        index = hashlib.sha256(self._index.numpy().tobytes()).hexdigest()[:12]
        return f"Later({type(self._dataset).__name__}, {len(self)} examples, {index}, {self._content})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of examples; their own shapes are known when they have been read."""
        return (len(self),)

    @property
    def dtype(self) -> str:
        """What stands for the type in messages."""
        return "read when needed"

    @property
    def device(self) -> torch.device:
        """Where examples are read."""
        return torch.device("cpu")

    @property
    def nbytes(self) -> int:
        """Bytes that are held in memory."""
        return 0

    def to(self, device: torch.device) -> Later:
        """Return itself: examples are moved when they have been read."""
        return self

    def clone(self) -> Later:
        """Return itself."""
        return self

    def read(self, seed: int = 0) -> tuple[Tree, Tree]:
        """Read the examples as one batch: inputs and targets.

        Args:
            seed: Of what the reading draws.

        Raises:
            UserError: If an example cannot be read, or they make no batch.
        """
        places, collate = self._index.tolist(), getattr(self._dataset, "collate_fn", None)
        items = []
        for at, place in enumerate(places):
            with repeatable(torch_seed(seed, "example", at)):
                with users_code(f"{self._where}, example {place} cannot be read"):
                    item = self._dataset[place]
                here = f"{self._where}, example {place}"
                items.append(item if collate else parsed(item, here, self._reading))
        if collate:
            with repeatable(torch_seed(seed, "batch")), users_code(f"{self._where}: its collate_fn failed"):
                batch = collate(items)
            x, y = parsed(batch, f"{self._where}, a batch", self._reading)[:2]
            return as_inputs(x, self._where), as_targets(y, self._where)
        shapes = {tuple((t.shape, t.dtype) for t in tensors(item[:2])) for item in items}
        if len(shapes) > 1:
            raise UserError(
                f"{self._where} has examples of several shapes in a batch: give the data set a method "
                "collate_fn, or its DataLoader one, that makes batches of them."
            )
        columns = [torch.stack(parts) for parts in zip(*(tensors(item[:2]) for item in items), strict=True)]
        x, y = rebuilt(items[0][:2], columns)
        return as_inputs(x, self._where), as_targets(y, self._where)

    def batches(self, rows: Sequence[Tensor], seeds: Sequence[int]) -> Iterator[tuple[Tree, Tree]]:
        """Read batches in turn, in other processes if there are some.

        Args:
            rows: Positions of each batch's examples, int64.
            seeds: Of what the reading of each draws.
        """
        asked = list(zip(rows, seeds, strict=True))
        yield from DataLoader(
            _Batches(self), batch_size=None, sampler=asked,
            num_workers=self._reading.workers or 0, collate_fn=_unchanged, generator=torch.Generator(),
        )  # fmt: skip


class _Batches(Dataset[Any]):
    def __init__(self, examples: Later) -> None:
        self._examples = examples

    def __getitem__(self, asked: tuple[Tensor, int]) -> tuple[Tree, Tree]:
        rows, seed = asked
        return self._examples[rows].read(seed)


def _unchanged(batch: Any) -> Any:
    return batch


def read_later(dataset: Any, where: str, reading: Reading) -> Read:
    """Return a dataset's examples without their inputs: class labels and groups, which are read once.

    Args:
        dataset: A map-style ``Dataset``.
        where: What it is, for messages.
        reading: Which entries are used, and how many processes read.

    Raises:
        UserError: If it has no examples, one cannot be read, or its draws cannot be repeated.
    """
    count = counted(dataset, where)
    fits_memory(where, count * torch.int64.itemsize)
    labels, groups = _given(dataset, _TARGETS, count), None
    if reading.groups is not None:
        groups = _given(dataset, (reading.groups,), count)
        reading = reading if groups is None else replace(reading, groups=None)
    first = example_at(dataset, 0, where, reading)
    form = _batch_form(dataset, where, reading) if makes_batches(dataset) else first.form
    scalar = isinstance(first.y, Tensor) and first.y.numel() == 1
    if (labels is None and scalar) or (groups is None and reading.groups is not None):
        with repeatable(torch_seed(0, "dataset", 2)):
            rows = [example_at(dataset, at, where, reading)[1:3] for at in range(count)]
        labels = torch.stack([row[0].reshape(()) for row in rows]) if labels is None and scalar else labels
        groups = torch.stack([row[1].reshape(()) for row in rows]) if reading.groups else groups
    y = None if labels is None or first.y is None else as_targets(labels, where)
    whole = None if groups is None else whole_numbers(groups, count, where)
    index = torch.arange(count)
    content = _content(dataset, reading, where, index)
    return Read(Later(dataset, reading, where, index, content), y, form, whole)


def _content(dataset: Any, reading: Reading, where: str, index: Tensor) -> str:
    """Hash some examples.

    Raises:
        UserError: If they are others each time they are read, though the global generators are the same.
    """
    digests, examples = (hashlib.sha256(), hashlib.sha256()), Later(dataset, reading, where, index)
    for at in np.linspace(0, len(index) - 1, min(len(index), _SAMPLE)).astype(int).tolist():
        for digest in digests:
            for part in tensors(examples[torch.tensor([at, at])].read(at)):
                digest.update(f"{part.dtype} {list(part.shape)}".encode() + part.numpy().tobytes())
    first, again = (digest.hexdigest()[:12] for digest in digests)
    if first != again:
        raise UserError(
            f"{where} must draw from the global generators of torch, numpy and random, which flsel seeds for "
            "each example: its examples are others each time they are read with the same seed."
        )
    return first


def _batch_form(dataset: Any, where: str, reading: Reading) -> Form:
    """Return how a data set's own batches hold inputs and targets."""
    with repeatable(torch_seed(0, "dataset", 3)), users_code(f"{where}: its collate_fn failed"):
        batch = dataset.collate_fn([dataset[0], dataset[0]])
    found = parsed(batch, f"{where}, a batch", reading)
    return replace(found.form, column=isinstance(found.y, Tensor) and found.y.shape == (2, 1))


def _given(dataset: Any, names: Sequence[str], count: int) -> Tensor | None:
    """Return an attribute with a number for each example."""
    for name in names:
        array = np.asarray(attribute(dataset, name))
        if array.shape == (count,) and array.dtype.kind in "biuf":
            return torch.from_numpy(array)
    return None


Collate = Callable[[Sequence[Any]], Any]


class Collated:
    """A dataset with the ``collate_fn`` of its loader.

    Args:
        dataset: The dataset.
        collate: Makes a batch of examples.
    """

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self._dataset, self.collate_fn = dataset, collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, at: int) -> Any:
        return self._dataset[at]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._dataset, name)
