"""Bring the arrays of any source into one form, or say what is wrong with them and where."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.data.population import Examples, Normalize, are_classes, is_mask
from flsel.data.trees import Tree, described, mapped, same, tensors
from flsel.errors import UserError, short

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_MOST_CLASSES = 1000  # That many may have gaps in any dataset.


def check_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Refuse arrays of anything but numbers that torch has too.

    Raises:
        UserError: If they hold texts, objects, dates or complex numbers; the message starts with
            ``where``.
    """
    if dtype.kind not in "bfiu" or dtype.itemsize > 8:
        raise UserError(
            f"{where} must hold numbers of at most 64 bits, got dtype {short(dtype, 60)}; turn texts and "
            "names of files into numbers first."
        )


def as_tensor(array: np.ndarray, where: str) -> Tensor:
    """Convert an array without copying it where possible.

    Raises:
        UserError: If it holds anything but numbers; the message starts with ``where``.
    """
    check_dtype(array.dtype, where)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise UserError(f"{where} must hold whole numbers below 2^63, got {array.max()}.")
        array = array.astype(np.int64)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


def fits_memory(where: str, size: int) -> None:
    """Refuse data that cannot be held in memory, before it is read.

    Args:
        where: What errors name, such as a file and an array.
        size: Bytes.

    Raises:
        UserError: If the machine has less memory.
    """
    most = _memory()
    if size > most:
        raise UserError(
            f"{where} would take {size / 2**30:,.1f} GiB of memory, and this process may have "
            f"{most / 2**30:,.1f} GiB."
        )


def _memory() -> int:
    """Return the bytes that the machine, the process's limits and its control groups allow it."""
    most = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    most += [limit for limit in resource.getrlimit(resource.RLIMIT_AS)[:1] if limit > 0]
    with suppress(OSError, ValueError):  # none on other systems
        for line in _OWN_GROUPS.read_text().splitlines():
            _, kinds, own = line.split(":", 2)
            if kinds in ("", "memory"):  # version 2 and version 1
                root, file = (_GROUPS / kinds, "memory.limit_in_bytes" if kinds else "memory.max")
                path = root / own.strip("/")
                most += filter(None, (_limit(group / file) for group in (path, *path.parents)))
    return min(most)


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # outside of the groups, or `max` where there is no limit
        return None


def as_inputs(x: Tree, where: str) -> Tree:
    """Bring inputs to ``[S, ...]`` float32, int64 (tokens), or uint8 images ``[S, channels, height, width]``.

    Args:
        x: Floats, booleans or integers of any shape ``[S, ...]``, or a tree of them; uint8 images
            ``[S, H, W]``, ``[S, H, W, C]`` or ``[S, C, H, W]`` with 1 or 3 channels (the last where both
            fit). Other uint8 numbers become float32, and so do booleans. In a tree, booleans and uint8 stay
            what they are, such as masks, but for pictures of three channels.
        where: What errors name, such as a file and an array.

    Raises:
        UserError: If the shape or dtype is none of these.
    """
    if not isinstance(x, Tensor):
        return mapped(lambda part: part if is_mask(part) else as_inputs(part, where), x)
    if x.ndim == 0:
        raise UserError(f"{where} must have one row per example, got a single number.")
    images = _as_images(x, where) if x.dtype == torch.uint8 else None
    if images is not None:
        return images
    if x.is_floating_point() or x.dtype in (torch.bool, torch.uint8):
        return x.detach().to(torch.float32)
    if x.is_complex():
        raise UserError(f"{where} must be real numbers, got dtype {x.dtype}.")
    return x.to(torch.int64)


def _as_images(x: Tensor, where: str) -> Tensor | None:
    """Bring uint8 images to ``[S, C, H, W]``; return None for a table."""
    if x.ndim == 3:
        return x.unsqueeze(1)
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return x
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return x.permute(0, 3, 1, 2).contiguous()
    if x.ndim > 3:
        raise UserError(
            f"{where} is uint8, so it must be images [S, H, W], [S, H, W, C] or [S, C, H, W] with 1 or 3 "
            f"channels, or a table, got shape {list(x.shape)}; store other inputs as float32."
        )
    return None


def as_targets(y: Tree, where: str) -> Tree:
    """Bring targets to float32 or int64; int64 ``[S]`` are class labels.

    Args:
        y: A tensor ``[S, ...]``, or a tree of them, or None. One column is taken as ``[S]``.
        where: What errors name, such as a file and an array.

    Raises:
        UserError: If they are no real numbers.
    """
    if not isinstance(y, Tensor):
        return mapped(lambda part: _as_target(part, where), y)
    y = _as_target(y, where)
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _as_target(y: Tensor, where: str) -> Tensor:
    if y.ndim == 0:
        raise UserError(f"{where} must have one target per example, got a single number.")
    if y.is_complex():
        raise UserError(f"{where} must have real numbers as targets, got dtype {y.dtype}.")
    return y.detach().to(torch.float32 if y.is_floating_point() else torch.int64)


def outputs_for(y: Tree) -> int | None:
    """Return how many outputs a model needs for targets: None for class labels, 0 where it cannot be told.

    A number or several: as many. Several labels of 0 and 1: one for each. Other whole numbers (tokens, the
    classes of pixels): the highest plus one.
    """
    if are_classes(y):
        return None
    if isinstance(y, tuple) and all(isinstance(part, Tensor) and part.ndim == 1 for part in y):
        y = torch.stack(y, dim=1)  # promotes whole numbers beside others
    if not isinstance(y, Tensor) or y.numel() == 0:
        return 0
    if y.is_floating_point() or (y.ndim == 2 and bool(((y == 0) | (y == 1)).all())):
        return y[0].numel()
    return int(y.max()) + 1


def quantiles_of(y: Tree, count: int) -> Tensor:
    """Number examples by the quantile of a scalar target that they lie in, int64 ``[S]`` in ``0..count-1``.

    Raises:
        UserError: If targets are not one number for each example.
    """
    if not isinstance(y, Tensor) or y.ndim != 1:
        raise UserError(f"data.strata needs one number as the target of each example, got {described(y)}.")
    edges = torch.quantile(
        y.double().sort().values[:: max(1, len(y) // 2**20)], torch.linspace(0, 1, count + 1).double()[1:-1]
    )
    return torch.bucketize(y.double(), edges, right=True)


def count_classes(y: Tensor, where: str) -> int:
    """Return the highest label plus one.

    Raises:
        UserError: If there are no labels, a label is negative, or one is so high that most classes between
            have no example.
    """
    if len(y) == 0:
        raise UserError(f"{where} has no examples.")
    low, high = (int(value) for value in torch.aminmax(y))
    if low < 0:
        raise UserError(
            f"{where} has the label {low}, but labels must be whole numbers from 0; targets that are no "
            "classes must be floating point."
        )
    if high >= max(_MOST_CLASSES, len(y)):
        raise UserError(
            f"{where} has the label {high} among {len(y)} examples; number the classes 0, 1, 2, ... without "
            "gaps; targets that are no classes must be floating point."
        )
    return high + 1


def examples(x: Tree, y: Tree, *, num_classes: int, where: str, groups: Tensor | None = None) -> Examples:
    """Check and join inputs and targets.

    Args:
        x: Inputs ``[S, ...]``.
        y: Targets, of :func:`as_targets`.
        num_classes: C.
        where: What errors name, such as a file.
        groups: What stands for labels, int64 ``[S]``, or None.

    Raises:
        UserError: If they are empty or of unequal lengths, a label is outside ``0..C-1``, or an input or
            target is NaN or infinite.
    """
    sizes = {len(part) for part in (*tensors(x), *tensors(y), *tensors(groups))}
    if len(sizes) > 1:
        raise UserError(
            f"{where} has {len(tensors(x)[0])} inputs but {len((*tensors(y), *tensors(groups))[0])} labels; "
            "there must be one label per input."
        )
    if sizes in (set(), {0}):
        raise UserError(f"{where} has no examples.")
    if isinstance(y, Tensor) and are_classes(y):
        low, high = (int(value) for value in torch.aminmax(y))
        if low < 0 or (groups is None and high >= num_classes):
            worst = low if low < 0 else high
            raise UserError(f"{where} has the label {worst}, but labels must be in 0..{num_classes - 1}.")
    for kind, tree in (("inputs", x), ("targets", y)):
        for part in tensors(tree):
            if isinstance(part, Tensor) and part.layout != torch.strided:
                raise UserError(f"{where} must have dense {kind}, got sparse ones: call to_dense() on them.")
            _check_finite(part, where, kind)
    return Examples(x, y, groups)


def _check_finite(x: Any, where: str, kind: str) -> None:
    # The extremes show NaN and infinity without a mask as large as the data.
    if not isinstance(x, Tensor):  # read later
        return
    if x.is_floating_point() and x.numel() and not all(v.isfinite() for v in torch.aminmax(x)):
        first = int((~x.reshape(len(x), -1).isfinite().all(1)).nonzero()[0])
        raise UserError(
            f"{where} has NaN or infinite {kind}, first in example {first}; remove or repair them."
        )


def same_inputs(train: Examples, other: Examples, where: str) -> None:
    """Check that two parts fit one model.

    Raises:
        UserError: If the shapes or types of inputs or targets differ; the message starts with ``where``.
    """
    for what, one, two in (("inputs", train.x, other.x), ("targets", train.y, other.y)):
        if not same(one, two):
            kinds = described(two), described(one)
            raise UserError(f"{where} has {what} {kinds[0]}, unlike the training set: {kinds[1]}.")


def measured(x: Tree) -> Normalize:
    """Normalise uint8 images by their own mean and standard deviation per channel; leave other inputs alone.

    Args:
        x: Training inputs ``[S, ...]``; uint8 images ``[S, channels, height, width]``.
    """
    if hasattr(x, "read"):  # later: images of bytes are scaled to [0, 1]
        return Normalize()
    if not isinstance(x, Tensor):
        return Normalize(parts=[Normalize() if is_mask(part) else measured(part) for part in tensors(x)])
    if x.dtype != torch.uint8:
        return Normalize()
    level = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in range(x.shape[1]):
        share = torch.bincount(x[:, channel].flatten(), minlength=256).double() / x[:, channel].numel()
        mean = float(share @ level)
        means.append(mean)
        # A constant channel carries nothing; dividing by one keeps it finite.
        stds.append(float(share @ (level - mean) ** 2) ** 0.5 or 1.0)
    return Normalize(tuple(means), tuple(stds))
