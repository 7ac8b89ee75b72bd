"""flsel: which clients should a federated round train on, and with which settings?

Importing the package is light; the names below are loaded on first use. A run is played by
:func:`flsel.runner.play.run`, which has no short name here: it would hide its module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flsel.selector import Need, Plan, Range, Selector, Tunable, Updates, View

__version__ = "0.1.0"

__all__ = ["Need", "Plan", "Range", "Selector", "Tunable", "Updates", "View", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'flsel' has no attribute {name!r}")
    return getattr(import_module("flsel.selector"), name)
