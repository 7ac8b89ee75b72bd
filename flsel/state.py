"""State by naming convention: what a checkpoint keeps of a selector or an objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def state_of(owner: object) -> dict[str, Any]:
    """Return the attributes of ``owner`` whose names end in ``_``: its state."""
    return {name: value for name, value in vars(owner).items() if name.endswith("_")}


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
