"""The examples of a torch Dataset, read once, as one tensor of inputs and one of labels."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from flsel.data.check_arrays import as_inputs, as_labels, as_tensor, fits_memory
from flsel.errors import UserError, short, users_code
from flsel.rng import global_states, repeatable, torch_seed

# What the label of an example that is a mapping may be called.
_LABELS = ("label", "labels", "y", "target", "targets", "class")

_TEXTS = (str, bytes, Path, type(None))  # names of files and the like, which no model takes
_LOG = logging.getLogger("flsel")

# Examples that are read a second time, and where reading draws from a global generator.
_AGAIN, _AGAIN_IF_DRAWN = 32, 1000
_DRAWN = (
    "is another one each time it is read, as by random augmentation: flsel reads it once, which would freeze "
    "what is drawn; let the dataset give plain examples, and the model's forward augment them while "
    "self.training is true."
)


def materialise(dataset: Any, where: str) -> tuple[Tensor, Tensor]:
    """Read all examples, transforms included.

    Args:
        dataset: A map-style ``Dataset`` of pairs (input, class label), or of mappings that hold both.
        where: What it is, for messages.

    Returns:
        Inputs ``[S, ...]`` and labels, int64 ``[S]``.

    Raises:
        UserError: If it is no such dataset, an example is unlike the first, or examples are drawn anew when
            they are read again.
    """
    plain = isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__
    if plain and len(dataset.tensors) == 2:
        x, y = dataset.tensors
        return as_inputs(x, where), as_labels(y, where)
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, (IterableDataset, str, dict)) or not sized:
        raise UserError(f"{where} must be a map-style Dataset, got {type(dataset).__name__}.")
    with users_code(f"{where} has no length", reads=True):
        count = len(dataset)
    if count == 0:
        raise UserError(f"{where} has no examples.")
    return _collect(dataset, count, where)


def _collect(dataset: Any, count: int, where: str) -> tuple[Tensor, Tensor]:
    generators = global_states()
    first = _example(dataset, 0, where)[0]
    fits_memory(where, count * first.numel() * first.element_size())
    x = torch.empty((count, *first.shape), dtype=first.dtype)
    y = torch.empty(count, dtype=torch.int64)
    for position in range(count):
        row, y[position] = _example(dataset, position, where)
        if row.shape != first.shape or row.dtype != first.dtype:
            raise UserError(
                f"{where}, example {position} is {list(row.shape)} {row.dtype}, unlike the first, "
                f"{list(first.shape)} {first.dtype}."
            )
        x[position] = row
    drew = global_states() != generators
    again = np.linspace(0, count - 1, min(count, _AGAIN_IF_DRAWN if drew else _AGAIN)).astype(int)
    with repeatable(torch_seed(0, "dataset", 1)):
        for position in again.tolist():
            row, label = _example(dataset, position, where)
            if label != y[position] or not _same(row, x[position]):
                raise UserError(f"{where}, example {position} {_DRAWN}")
    return as_inputs(x, where), y


def _same(one: Tensor, other: Tensor) -> bool:
    """Tell whether inputs are equal, NaN at the same places included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _example(dataset: Any, position: int, where: str) -> tuple[Tensor, int]:
    where = f"{where}, example {position}"
    with users_code(f"{where} cannot be read"):
        item = dataset[position]
    if isinstance(item, Mapping):
        x, y = _entries(item, where)
    elif isinstance(item, (tuple, list)) and len(item) == 2:
        x, y = item
    else:
        raise UserError(f"{where} must be a pair (input, label) or a mapping, got {type(item).__name__}.")
    return _input(x, where), _label(y, where)


def _entries(item: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    """Find the input and the label of an example that is a mapping."""
    labels = [name for name in _LABELS if name in item]
    inputs = [name for name in item if name not in _LABELS and not isinstance(item[name], _TEXTS)]
    if texts := [name for name in item if isinstance(item[name], _TEXTS)]:
        _tell_of_texts(where.rpartition(", example ")[0], ", ".join(map(str, texts)))
    if len(labels) != 1 or len(inputs) != 1:
        raise UserError(
            f"{where} must have one input and one entry called {', '.join(_LABELS[:-1])} or {_LABELS[-1]}, "
            f"found {short(', '.join(map(str, item)) or 'nothing', 100)}: a model gets one tensor, so let "
            "the dataset give pairs (input, label) and leave out what does not train."
        )
    return item[inputs[0]], item[labels[0]]


@functools.lru_cache(maxsize=16)
def _tell_of_texts(where: str, names: str) -> None:
    _LOG.warning("%s: not used: the texts %s", where, names)


def _input(item: Any, where: str) -> Tensor:
    with users_code(f"{where} has an input that is no array", reads=True):
        if isinstance(item, (tuple, list)) and any(isinstance(part, (Tensor, np.ndarray)) for part in item):
            raise UserError(f"{where} has several inputs, and a model takes one: join them (torch.cat).")
        if isinstance(item, Tensor):
            return item.detach().to_dense().cpu()
        # A picture with a palette is numbers of colours, not colours.
        item = item.convert("RGB") if getattr(item, "mode", None) == "P" else item
        return as_tensor(np.asarray(item), where)


def _label(label: Any, where: str) -> int:
    with users_code(f"{where} has a label that is no number", reads=True):
        array = np.asarray(label.cpu() if isinstance(label, Tensor) else label)
    if array.size != 1 or array.dtype.kind not in "biu":
        raise UserError(f"{where} must have a class label (a whole number from 0), got {short(repr(label))}.")
    return int(array.reshape(()))
