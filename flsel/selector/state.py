"""State by naming convention: what a checkpoint keeps of a selector or an objective."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from torch import Tensor

from flsel.errors import UserError

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, set, dict, OrderedDict, Counter)


def state_of(owner: object) -> dict[str, Any]:
    """Return the attributes of ``owner`` whose names end in ``_``: its state.

    Raises:
        UserError: If one holds what a checkpoint could not be read back from.
    """
    state = {name: value for name, value in vars(owner).items() if name.endswith("_")}
    for name, value in state.items():
        for stranger in _strangers(value):
            raise UserError(
                f"{type(owner).__name__}.{name} must be made of tensors, numbers, texts, lists, sets and "
                f"dictionaries, which checkpoints keep, got {stranger.__module__}.{stranger.__qualname__}."
            )
    return state


def restore_state(owner: object, state: Mapping[str, Any]) -> None:
    """Set the attributes that :func:`state_of` returned.

    Raises:
        ValueError: If the keys differ from the present state of ``owner``.
    """
    expected = sorted(state_of(owner))
    if sorted(state) != expected:
        raise ValueError(
            f"state of {type(owner).__name__} must have the keys {expected}, got {sorted(state)}."
        )
    for name, value in state.items():
        setattr(owner, name, value)


def _strangers(value: Any) -> Iterator[type]:
    """Find the types inside ``value`` that torch refuses to load without running code."""
    if type(value) in _CONTAINERS:
        for item in chain(value, value.values()) if isinstance(value, dict) else value:
            yield from _strangers(item)
    elif not isinstance(value, Tensor) and type(value) not in _PLAIN:
        yield type(value)
