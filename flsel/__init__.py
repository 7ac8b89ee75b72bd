"""flsel: which clients should a federated round train on, and with which settings?

Importing the package is light; the names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flsel._lazy import lazily

if TYPE_CHECKING:
    from flsel.choosing.choice import Choice
    from flsel.choosing.choose_selector import choose
    from flsel.comparison.comparison import Comparison
    from flsel.comparison.from_python import compare
    from flsel.config.groups import EvaluationConfig, LocalConfig, OutputConfig, TrackConfig
    from flsel.config.run_config import RunConfig
    from flsel.config.simulated_time import AsyncConfig, TimeConfig
    from flsel.data.data_config import DataConfig, SyntheticConfig
    from flsel.execution.run import resume, run
    from flsel.placing.place_selector import place
    from flsel.placing.placement import Placement
    from flsel.runner.result import Result
    from flsel.selector import Need, Plan, Range, Selector, Tunable, Updates, View
    from flsel_tune.search import tune
    from flsel_tune.sweep_result import Sweep

__version__ = "0.2.0"

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(
            ("Need", "Plan", "Range", "Selector", "Tunable", "Updates", "View"), "flsel.selector"
        ),
        **dict.fromkeys(
            ("EvaluationConfig", "LocalConfig", "OutputConfig", "TrackConfig"), "flsel.config.groups"
        ),
        **dict.fromkeys(("AsyncConfig", "TimeConfig"), "flsel.config.simulated_time"),
        **dict.fromkeys(("DataConfig", "SyntheticConfig"), "flsel.data.data_config"),
        "Choice": "flsel.choosing.choice",
        "Comparison": "flsel.comparison.comparison",
        "Placement": "flsel.placing.placement",
        "Result": "flsel.runner.result",
        "RunConfig": "flsel.config.run_config",
        "choose": "flsel.choosing.choose_selector",
        "compare": "flsel.comparison.from_python",
        "place": "flsel.placing.place_selector",
        "resume": "flsel.execution.run",
        "run": "flsel.execution.run",
        "Sweep": "flsel_tune.sweep_result",
        "tune": "flsel_tune.search",
    },
)

__all__ = [
    "AsyncConfig",
    "Choice",
    "Comparison",
    "DataConfig",
    "EvaluationConfig",
    "LocalConfig",
    "Need",
    "OutputConfig",
    "Placement",
    "Plan",
    "Range",
    "Result",
    "RunConfig",
    "Selector",
    "Sweep",
    "SyntheticConfig",
    "TimeConfig",
    "TrackConfig",
    "Tunable",
    "Updates",
    "View",
    "__version__",
    "choose",
    "compare",
    "place",
    "resume",
    "run",
    "tune",
]


def __dir__() -> list[str]:
    # Notebooks complete these names; a module does not list names that were not read yet.
    return __all__
