"""Which executor executes jobs: commands choose one and hand it down."""

from __future__ import annotations

from flsel.execution.executor import Executor, Resources
from flsel.execution.in_process import InProcess
from flsel.execution.on_ray.runs import OnRay


def executor_for(resources: Resources | None) -> Executor:
    """Return the executor on Ray with these resources; None returns that of this process."""
    return InProcess() if resources is None else OnRay(resources)
