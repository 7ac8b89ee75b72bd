"""The settings of a run: their schema, and how they are read, explained and written.

Importing the package is light: :class:`RunConfig` is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flsel.config.run import RunConfig

__all__ = ["RunConfig"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'flsel.config' has no attribute {name!r}")
    return getattr(import_module("flsel.config.run"), name)
