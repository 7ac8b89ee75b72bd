"""Tensors as NumPy's arrays, which Ray hands to processes of a machine without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flsel.errors import UserError

Array = tuple[np.ndarray, torch.dtype]
# NumPy lacks some of torch's types; their bits travel as those of whole numbers.
_BITS = {1: torch.uint8, 2: torch.int16}


def as_array(tensor: Tensor) -> Array:
    """Return the values of a tensor, and their type.

    Raises:
        UserError: If it is no tensor, but what a dataset reads later.
    """
    if not isinstance(tensor, Tensor):
        raise UserError(
            "data.workers must be null where other processes train: they get examples from memory."
        )
    plain = tensor.detach().cpu()
    try:
        return plain.numpy(), tensor.dtype
    except TypeError:
        return plain.view(_BITS[plain.itemsize]).numpy(), tensor.dtype


def as_tensor(array: Array) -> Tensor:
    """Return what :func:`as_array` was given, on the CPU; it must not be written to."""
    values, dtype = array
    with warnings.catch_warnings():
        # PyTorch warns that shared pages are read-only.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        shared: Any = torch.from_numpy(values)
    tensor: Tensor = shared if shared.dtype == dtype else shared.view(dtype)
    return tensor


def as_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return :func:`as_array` of each."""
    return {name: as_array(value) for name, value in tensors.items()}


def as_tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return :func:`as_tensor` of each."""
    return {name: as_tensor(value) for name, value in arrays.items()}
