"""``flsel schema``: print the JSON schema of a run's settings, for editors."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flsel.config.json_schema import json_schema
from flsel.errors import UserError

_USAGE = """\
usage: flsel schema > flsel.schema.json

Print the JSON schema of the settings of a run. An editor that knows YAML completes and checks a file whose
first line is
# yaml-language-server: $schema=flsel.schema.json
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if {"-h", "--help"} & set(arguments):
        print(_USAGE, end="")
        return 0
    if arguments:
        raise UserError(f"flsel schema takes no arguments, got {arguments[0]}: flsel schema > FILE.")
    print(json.dumps(json_schema(), indent=1))
    return 0
