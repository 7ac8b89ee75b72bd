"""State by naming convention: checkpoints keep the attributes whose names end in ``_``."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from copy import copy
from itertools import chain
from typing import Any, final

from torch import Tensor, device

from flsel.errors import UserError, keep_whole, short

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, set, dict, OrderedDict, Counter)


class Stateful:
    """Base of classes with state in attributes whose names end in ``_``."""

    def __init_subclass__(cls) -> None:
        """Refuse a class that overrides the two methods, because exact resumption needs them."""
        keep_whole(cls, "state_dict", "load_state_dict")
        super().__init_subclass__()

    @final
    def state_dict(self) -> dict[str, Any]:
        """Return the state: every attribute whose name ends in ``_``.

        Raises:
            UserError: If a checkpoint could not keep one of them.
        """
        state = {name: value for name, value in vars(self).items() if name.endswith("_")}
        for name, value in state.items():
            owned = f"{type(self).__name__}.{name}"
            try:
                strangers = list(_strangers(value))
            except RecursionError:
                raise UserError(f"{owned} is part of itself, which no checkpoint keeps.") from None
            for stranger in strangers:
                raise UserError(
                    f"{owned} must be made of tensors, numbers, texts, lists, sets "
                    "and dictionaries, which checkpoints keep, got "
                    f"{stranger.__module__}.{stranger.__qualname__}."
                )
        return state

    @final
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, on the device of the present state's tensors.

        Raises:
            ValueError: If a key of the present state is missing, or one is no name of state. Additional
                attributes of state are allowed.
        """
        present = self.state_dict()
        odd = next((name for name in state if not _names_state(name)), None)
        if odd is not None:
            raise ValueError(
                f"state of {type(self).__name__} must be attributes whose names end in _, "
                f"got {short(odd, 60)}."
            )
        if not present.keys() <= state.keys():
            raise ValueError(
                f"state of {type(self).__name__} must have the keys {sorted(present)}, got {sorted(state)}."
            )
        homes = [value.device for value in present.values() if isinstance(value, Tensor)]
        for name, value in state.items():
            setattr(self, name, _placed(value, homes[0]) if homes else value)


def _names_state(name: object) -> bool:
    """Tell whether a checkpoint may set an attribute: a method or a hyper-parameter is none of its own."""
    return isinstance(name, str) and name.isidentifier() and name.endswith("_") and not name.startswith("__")


def _placed(value: Any, home: device) -> Any:
    """Move every tensor inside ``value`` to a device."""
    if isinstance(value, dict):
        placed = copy(value)
        for key, item in value.items():
            placed[key] = _placed(item, home)
        return placed
    if isinstance(value, list | tuple):
        return type(value)(_placed(item, home) for item in value)
    return value.to(home) if isinstance(value, Tensor) else value


def _strangers(value: Any) -> Iterator[type]:
    """Find the types inside ``value`` that torch refuses to load without running code."""
    if type(value) in _CONTAINERS:
        for item in chain(value, value.values()) if isinstance(value, dict) else value:
            yield from _strangers(item)
    elif not isinstance(value, Tensor) and type(value) not in _PLAIN:
        yield type(value)
