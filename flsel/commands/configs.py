"""``flsel configs``: list the settings that flsel brings along, or print one of them."""

from __future__ import annotations

from collections.abc import Sequence

from flsel.errors import UserError, located
from flsel.files.shipped import PAPERS, RUNS, SEARCH, find, shipped
from flsel.files.yaml import read_yaml

_HEADINGS = {
    RUNS: "Runs (flsel train --config NAME)",
    PAPERS: "The papers' settings (flsel train --config NAME)",
    SEARCH: "What to search over (flsel tune --config ... --space NAME)",
}


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if len(arguments) > 1 or any(word.startswith("-") and word not in ("-h", "--help") for word in arguments):
        raise UserError("flsel configs takes at most one name: flsel configs [NAME].")
    if arguments and not arguments[0].startswith("-"):
        with located(arguments[0]):
            path = find(arguments[0])
            read_yaml(path)  # refuses what is no settings
            print(path.read_text(encoding="utf-8"), end="")
        return 0
    for kind, heading in _HEADINGS.items():
        files = shipped(kind)
        width = max(len(file.name) for file in files)
        print(heading, *(f"  {file.name:{width}}  {file.about}" for file in files), "", sep="\n")
    print("flsel configs NAME prints one; a copy of it is a start of your own.")
    return 0
