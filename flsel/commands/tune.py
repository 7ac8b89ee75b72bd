"""``flsel tune`` as the command line starts it: light, in a process of its own where that can be had."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flsel.execution.on_ray.supervisor import supervise


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    light = sys.platform == "linux" and not {"torch", "ray"} & set(sys.modules)
    if not light or {"--help", "-h"} & set(arguments):  # threads do not survive a fork
        return _command(arguments)
    return supervise(list(arguments), _command)


def _command(arguments: Sequence[str]) -> int:
    from flsel.commands import tuning

    return tuning.main(arguments)
