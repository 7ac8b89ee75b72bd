"""``flsel choose`` as the command line starts it: light, and supervised where Ray executes runs."""

from __future__ import annotations

from collections.abc import Sequence

from flsel.commands.compare import supervised


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return supervised("choose", arguments, _command)


def _command(arguments: Sequence[str]) -> int:
    from flsel.commands import race_command

    return race_command.main(arguments)
