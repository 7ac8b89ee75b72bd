"""Arguments of classes that users choose: declared once, with type, range and search range.

    alpha: Annotated[float, Range(0, below=1), Tunable(0.1, 0.9)] = 0.5

The check of a value, its error message, the command line's help, the default search space and the tables of
the docs all come from this one line.
"""

from __future__ import annotations

from flsel.arguments.declared import (
    Argument,
    Checked,
    arguments,
    check_arguments,
    check_settings,
    settings_of,
    takes,
    takes_any,
)
from flsel.arguments.messages import alternatives, rule, shown
from flsel.arguments.ranges import Range, Tunable, UserPath

__all__ = [
    "Argument",
    "Checked",
    "Range",
    "Tunable",
    "UserPath",
    "alternatives",
    "arguments",
    "check_arguments",
    "check_settings",
    "rule",
    "settings_of",
    "shown",
    "takes",
    "takes_any",
]
