"""The examples of a torch Dataset, read once, as tensors of inputs and of targets."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from flsel.data.check_arrays import as_inputs, as_targets, as_tensor, fits_memory
from flsel.data.trees import Form, Tree, leaves, mapped, tensors
from flsel.errors import UserError, short, users_code
from flsel.rng import global_states, repeatable, torch_seed

# What the label of an example that is a mapping may be called.
_LABELS = ("label", "labels", "y", "target", "targets", "class")

_TEXTS = (str, bytes, Path, type(None))  # names of files and the like, which no model takes
MAP_STYLE = "must be a map-style Dataset"
_LOG = logging.getLogger("flsel")

# Examples that are read a second time, and where reading draws from a global generator.
_AGAIN, _AGAIN_IF_DRAWN = 32, 1000


class NotKept(UserError):
    """A data set whose examples cannot be read once and kept, but when they are needed."""


@dataclass(frozen=True)
class Reading:
    """Which entries of an example are used, from the settings.

    Attributes:
        inputs: Names of the inputs; empty takes all entries but the target.
        target: Name of the target; None finds it by its usual names.
        groups: Attribute of the data set, or entry of its examples, that stands for labels; or None.
        workers: Processes that read examples when they are needed, 0 for none besides the run's own; None
            reads examples once where they can be kept.
    """

    inputs: tuple[str, ...] = ()
    target: str | None = None
    groups: str | None = None
    workers: int | None = None

    @property
    def named(self) -> bool:
        """Whether entries are named, so that examples must have names."""
        return bool(self.inputs or self.target or self.groups)


ALL = Reading()


class Read(NamedTuple):
    """The examples of a data set.

    Attributes:
        x: Inputs, a tree of ``[S, ...]``.
        y: Targets, a tree of ``[S, ...]``, or None.
        form: How the data set's own examples hold them.
        groups: What stands for labels, int64 ``[S]``, or None.
    """

    x: Tree
    y: Tree
    form: Form
    groups: Tensor | None


def materialise(dataset: Any, where: str, reading: Reading = ALL) -> Read:
    """Read all examples, transforms included.

    Args:
        dataset: A map-style ``Dataset`` of pairs (input, target), of mappings, or of inputs alone.
        where: What it is, for messages.
        reading: Which entries are used.

    Raises:
        UserError: If it is no such dataset, or an example is unlike the first.
        NotKept: If it makes batches itself, has more examples than memory holds, or draws them anew when they
            are read again.
    """
    if makes_batches(dataset):
        raise NotKept(f"{where} makes batches by a collate_fn")
    plain = isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__
    count = counted(dataset, where)
    given = attribute(dataset, reading.groups) if reading.groups else None
    if given is not None:
        reading = replace(reading, groups=None)
    form = example_at(dataset, 0, where, reading).form
    if plain and len(dataset.tensors) == 2:
        x, y = dataset.tensors
        groups = None
    else:
        x, y, groups = _collect(dataset, count, where, reading)
    if given is not None:
        groups = _as_tensor(given, f"{where}: its {reading.groups}")
    whole = None if groups is None else whole_numbers(groups, count, where)
    return Read(as_inputs(x, where), as_targets(y, where), form, whole)


def makes_batches(dataset: Any) -> bool:
    """Tell whether a data set, or its loader, makes batches itself."""
    return getattr(dataset, "collate_fn", None) is not None


def counted(dataset: Any, where: str) -> int:
    """Return how many examples a map-style data set has.

    Raises:
        UserError: If it is none, or has none.
    """
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset):
        raise UserError(
            f"{where} is an IterableDataset, {type(dataset).__name__}, which has no positions to deal "
            "to clients: let a map-style Dataset return the examples of list(dataset) by __getitem__, or "
            "read them by position."
        )
    if isinstance(dataset, (str, dict)) or not sized:
        raise UserError(f"{where} {MAP_STYLE}, got {type(dataset).__name__}.")
    with users_code(f"{where} has no length", reads=True):
        count = len(dataset)
    if count == 0:
        raise UserError(f"{where} has no examples.")
    return count


def attribute(dataset: Any, name: str) -> Any:
    """Return an attribute with a value for each example, also behind ``Subset`` and ``ConcatDataset``.

    Args:
        dataset: A map-style data set.
        name: The attribute.

    Returns:
        The attribute; None if there is none, or a method goes by the name.
    """
    found = getattr(dataset, name, None)
    if found is not None:
        return None if callable(found) else found
    if isinstance(dataset, Subset):
        found = attribute(dataset.dataset, name)
        return None if found is None else np.asarray(found)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        parts = [attribute(part, name) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate(parts)
    return None


class OneExample(NamedTuple):
    """An example, or a batch: inputs, targets, what stands for labels, and how the data set holds them."""

    x: Tree
    y: Tree
    groups: Tree
    form: Form


def _collect(dataset: Any, count: int, where: str, reading: Reading) -> tuple[Tree, Tree, Tree]:
    generators = global_states()
    first = example_at(dataset, 0, where, reading)[:3]
    try:
        fits_memory(where, count * sum(part.nbytes for part in tensors(first)))
    except UserError as error:
        raise NotKept(str(error).removesuffix(".")) from None
    table = mapped(lambda part: torch.empty((count, *part.shape), dtype=part.dtype), first)
    for position in range(count):
        row = example_at(dataset, position, where, reading)[:3]
        if _shapes(row) != _shapes(first):
            raise UserError(
                f"{where}, example {position} is {_shapes(row)}, unlike the first, {_shapes(first)}: give "
                "the data set a method collate_fn, or its DataLoader one, that makes batches of them."
            )
        for whole, part in zip(tensors(table), tensors(row), strict=True):
            whole[position] = part
    drew = global_states() != generators
    again = np.linspace(0, count - 1, min(count, _AGAIN_IF_DRAWN if drew else _AGAIN)).astype(int)
    with repeatable(torch_seed(0, "dataset", 1)):
        for position in again.tolist():
            row = example_at(dataset, position, where, reading)[:3]
            known = [part[position] for part in tensors(table)]
            alike = _shapes(row) == _shapes(first)
            if not alike or not all(map(_same, tensors(row), known)):
                raise NotKept(f"{where}, example {position} is another one each time it is read")
    x, y, groups = table
    return x, y, groups


def _shapes(example: Tree) -> str:
    """Describe an example's entries, shapes and dtypes."""
    x, y = (
        ", ".join(f"{name} {list(part.shape)} {part.dtype}".strip() for name, part in leaves(tree))
        for tree in example[:2]
    )
    return f"{x} with target {y}" if y else x


def _same(one: Tensor, other: Tensor) -> bool:
    """Tell whether inputs are equal, NaN at the same places included."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def example_at(dataset: Any, position: int, where: str, reading: Reading) -> OneExample:
    """Read an example of a data set.

    Raises:
        UserError: If it cannot be read, or has nothing that trains.
    """
    where = f"{where}, example {position}"
    with users_code(f"{where} cannot be read"):
        item = dataset[position]
    return parsed(item, where, reading)


def parsed(item: Any, where: str, reading: Reading) -> OneExample:
    """Find inputs and target of an example, or of a batch.

    Args:
        item: A pair, a mapping, or inputs alone.
        where: What it is, for messages.
        reading: Which entries are used.

    Raises:
        UserError: If it is none of these.
    """
    named = type(item) if hasattr(item, "_fields") else None
    if isinstance(item, Mapping) or (named and (len(item) != 2 or reading.named)):
        found = _entries(item if named is None else item._asdict(), where, reading)
        return found._replace(form=replace(found.form, named=named))
    if reading.named:
        raise UserError(
            f"{where} must be a mapping, whose entries data.columns and data.groups name, got "
            f"{type(item).__name__}."
        )
    if isinstance(item, (tuple, list)) and len(item) == 2:
        x, y = _as_tree(item[0], where), _target(item[1], where)
        return OneExample(x, y, None, Form(named=named, column=_is_column(y)))
    if isinstance(item, _TEXTS) or (isinstance(item, (tuple, list)) and not item):
        raise UserError(
            f"{where} must be a pair (input, target), a mapping or an input, got {type(item).__name__}."
        )
    return OneExample(_as_tree(item, where), None, None, Form(paired=False))


def _entries(item: Mapping[str, Any], where: str, reading: Reading) -> OneExample:
    """Find inputs, target and group of an example that is a mapping."""
    found = short(", ".join(map(str, item)) or "nothing", 100)
    for name in (*reading.inputs, reading.target, reading.groups):
        if name is not None and name not in item:
            raise UserError(
                f"{where} must have the entry {name}, which data.columns or data.groups names, found {found}."
            )
    labels = [reading.target] if reading.target else [name for name in _LABELS if name in item]
    if len(labels) > 1:
        raise UserError(
            f"{where} has the targets {' and '.join(labels)}: set data.columns to the one that is meant, "
            f"such as {{target: {labels[0]}}}."
        )
    used = reading.inputs or [name for name in item if name not in (*labels, reading.groups)]
    texts = [name for name in used if isinstance(item[name], _TEXTS)]
    if texts and reading.inputs:
        raise UserError(f"{where}: {texts[0]} is a text, and models take numbers: turn it into tokens first.")
    if texts:
        _tell_of_texts(where.rpartition(", example ")[0], ", ".join(map(str, texts)))
    inputs = {str(name): _as_tree(item[name], f"{where}: {name}") for name in used if name not in texts}
    if not inputs:
        raise UserError(f"{where} must have an input besides the target, found {found}.")
    y = _target(item[labels[0]], f"{where}: {labels[0]}") if labels else None
    groups = (
        None if reading.groups is None else _as_tensor(item[reading.groups], f"{where}: {reading.groups}")
    )
    only = next(iter(inputs)) if len(inputs) == 1 else None
    form = Form(only, labels[0] if labels else None, paired=False, column=_is_column(y))
    return OneExample(inputs if only is None else inputs[only], y, groups, form)


@functools.lru_cache(maxsize=16)
def _tell_of_texts(where: str, names: str) -> None:
    _LOG.warning("%s: not used: the texts %s", where, names)


def _as_tree(item: Any, where: str, *, target: bool = False) -> Tree:
    """Return an input as tensors: mappings, tuples and lists of arrays, and tuples of targets stay that."""
    if isinstance(item, Mapping):
        return {str(name): _as_tree(part, f"{where}: {name}") for name, part in item.items()}
    arrays = isinstance(item, (tuple, list)) and any(
        isinstance(p, (Tensor, np.ndarray, Mapping)) for p in item
    )
    if arrays or hasattr(item, "_fields") or (target and isinstance(item, tuple)):
        parts = [_as_tree(part, where) for part in item]
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return _as_tensor(item, where)


def _as_tensor(item: Any, where: str, *, target: bool = False) -> Tensor:
    with users_code(f"{where} has an input that is no array", reads=True):
        if isinstance(item, Tensor):
            return item.detach().to_dense().cpu()
        # A picture with a palette is numbers of colours, not colours; as a target, of classes.
        palette = getattr(item, "mode", None) == "P" and not target
        item = item.convert("RGB") if palette else item
        array = np.asarray(item)
        if array.dtype == object and not isinstance(item, (list, np.ndarray)):
            kind = type(item).__name__
            raise UserError(f"{where} must be numbers, tensors, or tuples and mappings of them, got {kind}.")
        return as_tensor(array, where)


def _is_column(y: Tree) -> bool:
    return isinstance(y, Tensor) and y.shape == (1,)


def _target(item: Any, where: str) -> Tree:
    if isinstance(item, _TEXTS) or (isinstance(item, (tuple, list)) and not item):
        raise UserError(f"{where} must have a target of numbers, got {short(repr(item))}.")
    return (
        _as_tensor(item, where, target=True) if hasattr(item, "mode") else _as_tree(item, where, target=True)
    )


def whole_numbers(groups: Tensor, count: int, where: str) -> Tensor:
    """Return what stands for labels, int64 ``[S]``.

    Raises:
        UserError: If it is no whole number for each example.
    """
    groups = groups[:, 0] if groups.ndim == 2 and groups.shape[1] == 1 else groups
    if groups.shape != (count,) or groups.is_floating_point() or groups.is_complex() or groups.min() < 0:
        raise UserError(
            f"data.groups must be one whole number >= 0 for each of the {count} examples of {where}, got "
            f"{groups.dtype} of shape {list(groups.shape)}."
        )
    return groups.to(torch.int64)
