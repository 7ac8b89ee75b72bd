"""Tables in the pages of docs/results."""

from __future__ import annotations

END = "<!-- end -->"


def put(text: str, name: str, table: str) -> str:
    """Return a page with a table put in its place.

    Raises:
        ValueError: If the page has no place of that name.
    """
    before, start, rest = text.partition(f"<!-- table {name} -->\n")
    if not start:
        raise ValueError(f"there is no place for {name}")
    return f"{before}{start}\n{table}\n\n{END}{rest.partition(END)[2]}"
