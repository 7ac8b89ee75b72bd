"""flsel: which clients should a federated round train on, and with which settings?

Importing the package is light; the names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flsel._lazy import lazily

if TYPE_CHECKING:
    from flsel.comparison.drive import compare
    from flsel.config.run import RunConfig
    from flsel.runner.play import resume, run
    from flsel.runner.result import Result
    from flsel.selector import Need, Plan, Range, Selector, Tunable, Updates, View

__version__ = "0.1.0"

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(
            ("Need", "Plan", "Range", "Selector", "Tunable", "Updates", "View"), "flsel.selector"
        ),
        "Result": "flsel.runner.result",
        "RunConfig": "flsel.config.run",
        "compare": "flsel.comparison.drive",
        "resume": "flsel.runner.play",
        "run": "flsel.runner.play",
    },
)

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
    "resume",
    "run",
]


def __dir__() -> list[str]:
    # What a notebook completes; names that nobody asked for yet are not among the module's own.
    return __all__
