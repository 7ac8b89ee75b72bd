"""A model object that was given from Python: ``config.yaml`` can name it, not build it again."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

from torch import nn

from flsel.arguments.spec import Spec, has_path
from flsel.errors import UserError
from flsel.local.torch_internals import copy_hooks


class Given(nn.Module):
    """What ``config.yaml`` holds in the place of a model object, or of a function without an import path.

    Attributes:
        name: The object's class, or the class's or function's name.
        parameters_hash: SHA-256 of the object's parameters and buffers; null for a function.

    Raises:
        UserError: Always: a run with such a model goes on or is repeated in the program that made the model.
    """

    def __init__(self, name: str, parameters_hash: str | None = None) -> None:
        raise UserError(
            f"model {name} was given as an object from Python, and no file can build it again: repeat the "
            "run from Python with flsel.run, or give a class or function that can be imported."
        )


def described(model: nn.Module | Callable[..., Any]) -> Spec | None:
    """Describe a model that has no import path; None if it has one."""
    if isinstance(model, nn.Module):
        digest = hashlib.sha256()
        for name, value in sorted(model.state_dict().items()):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        arguments = {"name": type(model).__name__, "parameters_hash": digest.hexdigest()}
    elif _has_no_path(model):
        arguments = {"name": model.__qualname__}
    else:
        return None
    return Spec(f"{Given.__module__}.{Given.__qualname__}", arguments, "model")


def copied(model: nn.Module | Callable[..., Any]) -> Callable[..., nn.Module] | None:
    """Return what makes the model that :func:`described` describes; None for one with an import path."""
    if isinstance(model, nn.Module):
        # A run trains a copy, so that the next one starts from the same parameters.
        return lambda: _copy(model)
    return model if _has_no_path(model) else None


def _has_no_path(model: Callable[..., Any]) -> bool:
    return hasattr(model, "__qualname__") and not has_path(model)


def _copy(model: nn.Module) -> nn.Module:
    """Copy a model, with the hooks of its parameters, which torch leaves out."""
    made = copy.deepcopy(model)
    for before, after in zip(model.parameters(), made.parameters(), strict=True):
        copy_hooks(before, after)
    return made
