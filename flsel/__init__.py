"""flsel: which clients should a federated round train on, and with which settings?

Importing the package is light; the names below are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flsel.comparison.drive import compare
    from flsel.config.run import RunConfig
    from flsel.runner.play import run
    from flsel.runner.result import Result
    from flsel.selector import Need, Plan, Range, Selector, Tunable, Updates, View

__version__ = "0.1.0"

# Where each name is defined; no module of the package may carry the name of a function here.
_HOMES = {
    **dict.fromkeys(("Need", "Plan", "Range", "Selector", "Tunable", "Updates", "View"), "flsel.selector"),
    "Result": "flsel.runner.result",
    "RunConfig": "flsel.config.run",
    "compare": "flsel.comparison.drive",
    "run": "flsel.runner.play",
}

__all__ = [
    "Need",
    "Plan",
    "Range",
    "Result",
    "RunConfig",
    "Selector",
    "Tunable",
    "Updates",
    "View",
    "__version__",
    "compare",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flsel' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
