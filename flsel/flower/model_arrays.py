"""Models as arrays by name, on their way to nodes and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.errors import short
from flsel.flower.decoder import Malformed, is_plain, told
from flsel.params import Params

Arrays = Mapping[str, np.ndarray]


def to_arrays(params: Params) -> dict[str, np.ndarray]:
    """Return a model as arrays."""
    return {name: value.detach().cpu().contiguous().numpy() for name, value in params.items()}


def to_params(arrays: Arrays, like: Params, rows: int | None = None) -> Params:
    """Return arrays as a model, or as a stack of ``rows`` models.

    Real numbers of another precision are converted. Nothing is copied before names, shapes and types are
    known to be right, so nothing larger than the model is ever made.

    Args:
        arrays: What came.
        like: A model whose names and shapes the arrays must have; also the types, but for the precision of
            real numbers.
        rows: Models in the stack; None for a single model.

    Raises:
        Malformed: If a name, a shape or a type differs.
    """
    if arrays.keys() != like.keys():
        names = [short(", ".join(_first(held)), 200) for held in (like, arrays)]
        raise Malformed(f"an answer must hold the arrays {names[0]}, got {names[1] or 'none'}.")
    for name, wanted in like.items():
        shape = tuple(wanted.shape) if rows is None else (rows, *wanted.shape)
        array = arrays[name]
        if array.shape != shape or not (is_plain(array.dtype) and _alike(array.dtype, wanted.dtype)):
            kind = f"{wanted.dtype} {list(shape)}"
            found = f"{short(array.dtype, 60)} {told(list(array.shape))}"
            raise Malformed(f"{short(name, 100)} of an answer must be {kind}, got {found}.")
    return {name: tensor(arrays[name], wanted) for name, wanted in like.items()}


def tensor(array: np.ndarray, like: Tensor) -> Tensor:
    """Return a copy of an array with the type and on the device of a tensor."""
    return torch.from_numpy(np.array(array, order="C")).to(like)


def converted(arrays: Arrays, like: Params) -> str:
    """Name the type of the first array of another precision than the model's; empty if there is none."""
    kinds = {name: str(wanted.dtype).removeprefix("torch.") for name, wanted in like.items()}
    return next((str(arrays[n].dtype) for n, kind in kinds.items() if str(arrays[n].dtype) != kind), "")


def _first(names: Collection[str]) -> list[str]:
    return [str(name)[:100] for name, _ in zip(names, range(20), strict=False)]


def _alike(found: np.dtype[Any], wanted: torch.dtype) -> bool:
    if wanted.is_floating_point:
        return found.kind == "f"
    return found.name == str(wanted).removeprefix("torch.")
