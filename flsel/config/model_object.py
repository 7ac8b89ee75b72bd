"""A model object that was given from Python: ``config.yaml`` can name it, not build it again."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from flsel.arguments.spec import Spec, has_path
from flsel.errors import UserError
from flsel.local.torch_internals import add_hooks, hooks_of


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
            "run from Python, or give a class or function that can be imported."
        )


_PATH = f"{Given.__module__}.{Given.__qualname__}"
_AT_HAND: dict[str, Callable[..., Any]] = {}
"""The models that may stand for a :class:`Given` now, by :func:`_key`."""


@contextmanager
def at_hand(models: Iterable[Any]) -> Iterator[None]:
    """Let plain settings that describe models given as objects stand for these within the block.

    Args:
        models: Models as settings have them; those with an import path need no help and are left out.

    Raises:
        UserError: If two of them are described alike, though they are not the same.
    """
    before = dict(_AT_HAND)
    _AT_HAND.update(by_description(models))
    try:
        yield
    finally:
        _AT_HAND.clear()
        _AT_HAND.update(before)


def by_description(models: Iterable[Any]) -> dict[str, Callable[..., Any]]:
    """Return the models that have no import path by what describes them.

    Raises:
        UserError: If two of them are described alike, though they are not the same.
    """
    found: dict[str, Callable[..., Any]] = {}
    for model in models:
        spec = None if isinstance(model, Spec) else described(model)
        if spec is None:
            continue
        known = found.setdefault(_key(spec.init_args), model)
        alike = isinstance(model, nn.Module) and type(known) is type(model) and repr(known) == repr(model)
        if known is not model and not alike:
            raise UserError(
                f"model {spec.init_args['name']} stands for two different objects, which no file can tell "
                "apart: give them as classes or functions with different names."
            )
    return found


def named_in(settings: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    """Return the models at hand that plain settings describe, to be sent along with them."""
    model = settings.get("model")
    if not isinstance(model, Mapping) or model.get("class_path") != _PATH:
        return {}
    key = _key(model["init_args"])
    return {key: _AT_HAND[key]} if key in _AT_HAND else {}


def receive(models: Mapping[str, Callable[..., Any]]) -> None:
    """Have the models of :func:`named_in` at hand from now on, in the process that they were sent to."""
    _AT_HAND.update(models)


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
    return Spec(_PATH, arguments, "model")


def copied(model: nn.Module | Callable[..., Any]) -> Callable[..., nn.Module] | None:
    """Return what makes the model that :func:`described` describes; None for one with an import path."""
    if isinstance(model, Spec) and model.class_path == _PATH:
        # Described by plain settings: the object may be at hand.
        known = _AT_HAND.get(_key(model.init_args))
        return None if known is None else copied(known)
    if isinstance(model, nn.Module):
        # A run trains a copy, so that the next one starts from the same parameters.
        return lambda: _copy(model)
    return model if _has_no_path(model) else None


def _key(arguments: Mapping[str, Any]) -> str:
    return f"{arguments['name']} {arguments.get('parameters_hash')}"


def _has_no_path(model: Callable[..., Any]) -> bool:
    return hasattr(model, "__qualname__") and not has_path(model)


def _copy(model: nn.Module) -> nn.Module:
    """Copy a model, with the hooks of its parameters, which torch leaves out."""
    made = copy.deepcopy(model)
    for before, after in zip(model.parameters(), made.parameters(), strict=True):
        add_hooks(after, hooks_of(before))
    return made
