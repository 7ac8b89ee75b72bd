"""What a class takes from its user: arguments declared once, with type, range and search range.

    alpha: Annotated[float, Range(0, below=1), Tunable(0.1, 0.9)] = 0.5

The check of a value, its error message, the command line's help, the default search space and the tables of
the docs all come from this one line.
"""

from __future__ import annotations

from flsel.arguments.declared import Argument, Checked, arguments, check
from flsel.arguments.ranges import Range, Tunable
from flsel.arguments.words import alternatives, rule, shown

__all__ = [
    "Argument",
    "Checked",
    "Range",
    "Tunable",
    "alternatives",
    "arguments",
    "check",
    "rule",
    "shown",
]
