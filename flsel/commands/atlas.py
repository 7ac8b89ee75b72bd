"""``flsel atlas``: the selectors of an atlas, with the placements that were contributed."""

from __future__ import annotations

from collections.abc import Sequence

from flsel.errors import UserError
from flsel.placing.contributed import atlas_table
from flsel.placing.shipped_atlas import atlas_names, read_atlas
from flsel.runner.terminal import fitting_table, open_console

USAGE = """usage: flsel atlas [NAME]

Print an atlas: its committed selectors and the contributed placements. Without a name: synthetic."""


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if {"--help", "-h"} & set(arguments):
        print(f"{USAGE} There are {', '.join(atlas_names())}.")
        return 0
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        raise UserError(f"flsel atlas takes the name of one atlas: {', '.join(atlas_names())}.")
    atlas = read_atlas(arguments[0] if arguments else "synthetic")
    (head, body), out = atlas_table(atlas), open_console()
    out.print(atlas.title, markup=False, highlight=False)
    out.print(fitting_table(head, body, out.width), markup=False)
    return 0
