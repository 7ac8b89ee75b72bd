"""``flsel compare`` as the command line starts it: light, and supervised where Ray executes runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from flsel.execution.on_ray.supervisor import supervise

# Where runs are executed; a comparison that is resumed is told again.
_SIDE_BY_SIDE = ("max_concurrent", "cpus", "gpus", "memory", "address", "retries")


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return supervised("compare", arguments, _command)


def supervised(name: str, arguments: Sequence[str], command: Callable[[Sequence[str]], int]) -> int:
    """Run a command that executes runs, in a process of its own where Ray executes them.

    Args:
        name: The command's name.
        arguments: Its arguments.
        command: What takes them.

    Returns:
        Its exit code.
    """
    placed = _side_by_side(arguments)
    light = sys.platform == "linux" and not {"torch", "ray"} & set(sys.modules)
    # Ray takes a driver down with its daemon, without a word of Python.
    if placed and light and not {"--help", "-h"} & set(arguments):
        return supervise(list(arguments), command, name=name, again=placed)
    return command(arguments)


def _command(arguments: Sequence[str]) -> int:
    from flsel.commands import comparing

    return comparing.main(arguments)


def _side_by_side(arguments: Sequence[str]) -> list[str]:
    """Return the words that say where runs are executed."""
    found, taken = list[str](), False
    for word in arguments:
        if word.startswith("--"):
            key, equals, _ = word.removeprefix("--").partition("=")
            taken = key.replace("-", "_") in _SIDE_BY_SIDE
            found += [word] if taken else []
            taken = taken and not equals
        elif taken:
            found.append(word)
            taken = False
    return found
