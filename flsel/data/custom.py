"""Datasets by import path: a LightningDataModule, or a callable that returns torch Datasets."""

from __future__ import annotations

import inspect
import logging
import operator
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from flsel.arguments.class_paths import callable_at
from flsel.data.check_arrays import count_classes, examples, measured, outputs_for, same_inputs
from flsel.data.materialise import ALL, NotKept, Read, Reading, attribute, materialise
from flsel.data.population import BATCH_HOOKS, Examples, Source, are_classes
from flsel.data.read_later import Collated, read_later
from flsel.data.trees import Tree
from flsel.data.unused import Unused, part_of
from flsel.errors import UserError, short, users_code
from flsel.files.name_order import name_order
from flsel.rng import repeatable, torch_seed

_LOG = logging.getLogger("flsel")
_NOBODY = {"i": -1, "u": -1, "U": ""}  # by the kind of an array of owners
RULE = (
    "must return a LightningDataModule, a Dataset (arrays (inputs, labels) do), or Datasets as (train, test) "
    "or (train, validation, test)"
)


@runtime_checkable
class DataModule(Protocol):
    """A LightningDataModule by its methods, so that neither of Lightning's packages need be imported."""

    def setup(self, stage: str) -> None:
        """Make the datasets."""

    def train_dataloader(self) -> Any:
        """Return the loader of the training set."""


def load_custom(name: str, init_args: Mapping[str, Any], *, download: bool, reading: Reading = ALL) -> Source:
    """Load the dataset behind an import path and materialise it once, transforms included.

    ``data.name`` names a ``LightningDataModule`` (``setup`` is called, ``prepare_data`` only with
    ``data.download``; the datasets behind its train, validation and test loaders are used, its batch sizes
    are not), or a class or function that returns a map-style ``Dataset`` or several of them, (train, test)
    or (train, validation, test), of which all but the first may be None, or by name, as a Hugging Face
    ``DatasetDict``; two arrays (inputs, targets) do for a ``Dataset``. Examples are pairs (input, target),
    mappings, or inputs without a target. Inputs and targets are tensors, arrays, numbers or PIL images, or
    tuples and mappings of them. In a mapping the target is called ``label``, ``y``, ``target`` or the like,
    or ``data.columns`` names it. uint8 images are normalised by the training set's own statistics.

    Attributes may say more: ``num_classes`` (or a list ``classes``) of the training dataset or the module;
    without, it is the highest training label plus one. ``owner`` of the training and the test dataset: the
    natural client of every example, a number or a name, or -1 for nobody.

    Args:
        name: As ``data.name``.
        init_args: As ``data.init_args``.
        download: As ``data.download``.
        reading: Which entries of examples are used.

    Raises:
        UserError: If the path cannot be imported, ``init_args`` do not fit, or what comes back is no dataset.
    """
    # What draws from a global generator, transforms included, gives the same dataset whenever it is loaded.
    with repeatable(torch_seed(0, "dataset")):
        return _load(_call(_resolve(name), name, init_args), name, download, reading)


def load_object(made: Any, where: str, *, download: bool, reading: Reading = ALL) -> Source:
    """Read a dataset that is there as an object (see :func:`load_custom`).

    Args:
        made: What the callable of an import path may return.
        where: What messages call it.
        download: Call a LightningDataModule's ``prepare_data`` first.
        reading: Which entries of examples are used.

    Raises:
        UserError: If it is no dataset.
    """
    with users_code(f"{where} cannot be read"), repeatable(torch_seed(0, "dataset")):
        return _load(made, where, download, reading)


def _load(made: Any, name: str, download: bool, reading: Reading) -> Source:
    sets = _datasets(made, name, download)
    try:
        return _source(made, sets, name, reading)
    except NotKept as error:
        _LOG.info("data.workers: 0, examples are read when they are needed, since %s", error)
        return _source(made, sets, name, replace(reading, workers=0))


def _source(made: Any, sets: tuple[Any, Any, Any], name: str, reading: Reading) -> Source:
    train_set, validation_set, test_set = sets
    where = f"{name}: the training set"
    x, y, form, groups = _read(train_set, where, reading)
    classes = _classes((train_set, made), y, name) if are_classes(y) else 0
    train = examples(x, y, num_classes=classes, where=where, groups=groups)
    owner, test_owner = _owners(train_set, test_set, name)
    return Source(
        train=train,
        test=_other(test_set, train, classes, f"{name}: the test set", reading),
        num_classes=classes if groups is None else count_classes(groups, f"{where}: data.groups"),
        owner=owner,
        normalize=measured(train.x),
        name=name.rpartition(".")[2],
        test_owner=test_owner,
        validation=_other(validation_set, train, classes, f"{name}: the validation set", reading),
        outputs=_outputs(y, classes, groups, (train_set, made)),
        form=form,
        hooks=made if isinstance(made, DataModule) and any(_has(made, h) for h in BATCH_HOOKS) else None,
    )


def _read(dataset: Any, where: str, reading: Reading) -> Read:
    how = materialise if reading.workers is None else read_later
    return how(dataset, where, reading)


def _outputs(y: Tree, classes: int, groups: Tensor | None, declarers: tuple[Any, ...]) -> int | None:
    """Return how many outputs a model needs, where they are not as many as labels are told apart."""
    if are_classes(y):
        return None if groups is None else classes
    declared = next((d.num_classes for d in declarers if getattr(d, "num_classes", None)), None)
    return outputs_for(y) if declared is None else int(declared)


def _resolve(path: str) -> Any:
    return callable_at("data.name", path, Dataset, DataModule, tuple, list)


def _call(thing: Any, path: str, arguments: Mapping[str, Any]) -> Any:
    signature = inspect.signature(thing)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        accepted = ", ".join(signature.parameters) or "none"
        raise UserError(f"data.init_args do not fit {path}: {error}; it accepts {accepted}.") from None
    return thing(**arguments)


def _datasets(made: Any, name: str, download: bool) -> tuple[Any, Any, Any]:
    """Return the training, validation and test sets; the last two may be None."""
    if isinstance(made, DataModule):
        return _from_module(made, name, download)
    if isinstance(made, Mapping):
        return _named_parts(made, name)
    if _is_dataset(made) or _are_arrays(made):
        return _paired(made, name), None, None
    if isinstance(made, (tuple, list)) and len(made) in (2, 3):
        train, *validation, test = (_paired(part, name) for part in made)
        return train, validation[0] if validation else None, test
    raise UserError(f"data.name {name} {RULE}, got {type(made).__name__}.")


def _named_parts(made: Mapping[Any, Any], name: str) -> tuple[Any, Any, Any]:
    """Take parts by their names, as a Hugging Face ``DatasetDict`` has them."""
    parts, unused, found = dict[str, Any](), Unused(Path(name)), short(", ".join(map(str, made)), 80)
    for key, value in made.items():
        part = part_of(str(key))
        if part is None:
            unused.add(str(key))
        elif part in parts:
            raise UserError(f"data.name {name} must return one {part} set, got a mapping of {found}.")
        else:
            parts[part] = value
    unused.tell()
    if "train" not in parts:
        raise UserError(f"data.name {name} {RULE}, got a mapping of {found}.")
    return parts["train"], parts.get("validation"), parts.get("test")


def _is_dataset(made: Any) -> bool:
    """Tell whether something is a map-style dataset: torch's, or another with a length and items."""
    sized = hasattr(made, "__len__") and hasattr(made, "__getitem__")
    return isinstance(made, Dataset) or (
        sized and not isinstance(made, str | bytes | tuple | list | np.ndarray | Tensor)
    )


def _are_arrays(made: Any) -> bool:
    both = isinstance(made, (tuple, list)) and len(made) == 2
    return both and all(isinstance(part, np.ndarray | Tensor) and part.ndim > 0 for part in made)


def _paired(made: Any, path: str) -> Any:
    """Turn arrays (inputs, labels) into a dataset; leave others alone."""
    if not _are_arrays(made):
        return made
    x, y = made
    if len(x) != len(y):
        raise UserError(f"data.name {path} returned {len(x)} inputs and {len(y)} labels.")
    with users_code(f"data.name {path} returned arrays of no numbers", reads=True):
        # Copies: torch takes no array that is read-only, or runs backwards.
        return TensorDataset(*(torch.from_numpy(p.copy()) if isinstance(p, np.ndarray) else p for p in made))


def _from_module(module: Any, name: str, download: bool) -> tuple[Any, Any, Any]:
    hint = "" if download else " (data.download: true runs its prepare_data first)"
    with users_code(f"data.name {name} cannot set up its data{hint}"):
        if download:
            module.prepare_data()
        module.setup("fit")
        module.setup("test")
    train, validation, test = (
        _loaded(module, f"{part}_dataloader", name) for part in ("train", "val", "test")
    )
    return train, validation, test


def _has(module: Any, method: str) -> bool:
    """Tell whether a module has a method that is not Lightning's own."""
    owners = [base.__module__ for base in type(module).__mro__ if method in vars(base)]
    inherited = not owners or owners[0].startswith(("lightning.", "pytorch_lightning."))
    return not inherited or method in vars(module)


def _loaded(module: Any, method: str, path: str) -> Any:
    # Lightning's own method only says that it was not overridden.
    if not _has(module, method):
        return None
    loader = getattr(module, method)()
    loader = loader[0] if isinstance(loader, (list, tuple)) and len(loader) == 1 else loader
    if isinstance(loader, (list, tuple, Mapping)):
        raise UserError(
            f"{path}.{method} must return one DataLoader, got {len(loader)} of them: return one over "
            "torch.utils.data.ConcatDataset of their datasets, or, where their batches belong together, over "
            "a Dataset whose examples have the parts of all."
        )
    if loader is not None and not hasattr(loader, "dataset"):
        raise UserError(f"{path}.{method} must return one DataLoader, got {type(loader).__name__}.")
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, IterableDataset):  # refused when it is read
        return dataset
    if type(getattr(loader, "sampler", None)) is SubsetRandomSampler:
        dataset = Subset(loader.dataset, [int(place) for place in loader.sampler.indices])
    elif _chooses(loader):
        kind = type(loader.sampler if type(loader.batch_sampler) is BatchSampler else loader.batch_sampler)
        raise UserError(
            f"{path}.{method} chooses examples by {kind.__name__}, which draws from the whole dataset, and "
            "clients draw from their own: return a loader of the chosen ones (torch.utils.data.Subset), and "
            "let the loss weigh classes or examples."
        )
    collates = getattr(loader, "collate_fn", default_collate) not in (default_collate, default_convert)
    if loader is not None and getattr(type(loader), "__iter__", None) is not DataLoader.__iter__:
        raise UserError(
            f"{path}.{method} must return a plain DataLoader, got {type(loader).__name__}, which makes "
            "batches its own way: let the dataset give the examples."
        )
    rest = _dropped(loader)
    if rest and method != "train_dataloader" and isinstance(loader.sampler, SequentialSampler):
        dataset = Subset(loader.dataset, range(len(loader.dataset) - rest))
    if method == "train_dataloader" and loader is not None:
        _tell_unused(loader, rest, f"{path}.{method}")
    return Collated(dataset, loader.collate_fn) if collates else dataset


def _tell_unused(loader: Any, rest: int, where: str) -> None:
    """Name the settings of a training loader that say how Lightning batches, and not how flsel does."""
    unused = [f"drop_last (of the last {rest} examples of each epoch)"] if rest else []
    if getattr(loader, "batch_size", None) is not None:
        unused.append(f"batch_size {loader.batch_size}")
        unused += ["shuffle false"] if isinstance(loader.sampler, SequentialSampler) else []
    if unused:
        _LOG.warning(
            "%s: not used: %s; clients shuffle their examples, and local.batch_size and local.last_batch say "
            "how they make batches", where, ", ".join(unused),
        )  # fmt: skip


def _dropped(loader: Any) -> int:
    """Return how many examples a loader leaves out of each epoch, since they fill no batch."""
    size = getattr(loader, "batch_size", None)
    return len(loader.sampler) % size if getattr(loader, "drop_last", False) and size else 0


def _chooses(loader: Any) -> bool:
    """Tell whether a loader leaves examples of its dataset out, or repeats some."""
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    if type(sampler) is RandomSampler and (sampler.replacement or len(sampler) != len(sampler.data_source)):
        return True
    known = (SequentialSampler, RandomSampler, BatchSampler, type(None))
    return any(type(own) not in known for own in (sampler, batches))


def _other(dataset: Any, train: Examples, classes: int, where: str, reading: Reading) -> Examples | None:
    if dataset is None:
        return None
    if where.endswith("validation set") and attribute(dataset, "owner") is not None:
        _LOG.warning("%s has an owner, which is not used: its examples are one set", where)
    x, y, _, groups = _read(dataset, where, reading)
    part = examples(x, y, num_classes=classes, where=where, groups=groups)
    same_inputs(train, part, where)
    return part


def _classes(declarers: tuple[Any, ...], y: Tensor, path: str) -> int:
    for declarer in declarers:
        declared = getattr(declarer, "num_classes", None)
        if declared is None and hasattr(declarer, "classes"):
            declared = len(declarer.classes)
        if declared is not None:
            with suppress(TypeError):  # said below
                declared = operator.index(declared)  # of an array or a tensor, too
            if not isinstance(declared, int) or declared < 1:
                raise UserError(f"num_classes of {path} must be a positive number, got {declared!r}.")
            return declared
    return count_classes(y, f"{path}: the training set")


def _owners(train_set: Any, test_set: Any, name: str) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the natural clients of training and test examples, int64; -1 for nobody."""
    owner = _owner(train_set, f"{name}: the training set")
    test_owner = None if test_set is None else _owner(test_set, f"{name}: the test set")
    if owner is None:
        return None, None
    if test_owner is not None and test_owner.dtype.kind != owner.dtype.kind:
        raise UserError(f"owner of {name} must be names or numbers alike for training and test examples.")
    clients = np.unique(owner[owner != _NOBODY[owner.dtype.kind]])
    if len(clients) == 0:
        raise UserError(f"owner of {name}: the training set must name a client, got nobody for each example.")
    if clients.dtype.kind == "U":
        clients = np.array(sorted(clients.tolist(), key=name_order))
    if not np.array_equal(clients, np.arange(len(clients))):
        names = [str(client) for client in clients]
        listed = short(", ".join(names if len(names) < 5 else [*names[:3], "...", names[-1]]), 80)
        _LOG.info("owner of %s: %d clients, numbered from 0 in the order %s", name, len(clients), listed)
    return _numbered(owner, clients), None if test_owner is None else _numbered(test_owner, clients)


def _owner(dataset: Any, where: str) -> np.ndarray | None:
    """Return the owner of each example as the data set tells it: numbers or names."""
    with users_code(f"owner of {where} is no list of numbers or names", reads=True):
        found = attribute(dataset, "owner")
        owner = np.asarray(found)
    if found is None:
        return None
    if owner.dtype == object and all(isinstance(one, str) for one in owner.flat):
        owner = owner.astype(str)
    known = owner.shape == (len(dataset),) and owner.dtype.kind in _NOBODY
    if not known or (owner.dtype.kind != "U" and owner.min() < -1):
        raise UserError(
            f"owner of {where} must be one client, a number >= 0 or a name, or -1 or an empty name for "
            f"nobody, for each of {len(dataset)} examples."
        )
    return owner if owner.dtype.kind == "U" else owner.astype(np.int64)


def _numbered(owner: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Return the place of each owner among the clients, int64; -1 for those who are not among them."""
    order = np.argsort(clients)
    places = order[np.searchsorted(clients, owner, sorter=order).clip(max=len(clients) - 1)]
    return np.where(clients[places] == owner, places, -1)
