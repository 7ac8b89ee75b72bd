"""Texts of others, such as names, in each format that flsel writes: one function for each.

A name may come from somebody else's run. In no format may it be more than a text: no element of a page, no
link, no formula, no command to a terminal, no second line.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Control characters, separators of lines, marks that change the direction of a text, halves of surrogates.
_ODD = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_HIDDEN, _IN_LINES = re.compile(f"[\x00-\x1f{_ODD}]"), re.compile(f"[\x00-\x08\x0b-\x1f{_ODD}]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# What begins code, an element or a cell, and what makes a link of a bracket.
_MARKDOWN = re.compile(r"([\\`|]|<(?=[A-Za-z/!?])|(?<=\])[(\[:])")
_LATEX = {
    "\\": r"\textbackslash{}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "{": r"\{", "}": r"\}",
    "$": r"\$", "^": r"\^{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "[": "{[}", "]": "{]}",  # a bracket behind a line break is its argument
}  # fmt: skip
# What every object of JavaScript has, which Vega takes for groups of rows that are there already.
_OF_OBJECTS = {
    "__proto__", "constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString",
    "toString", "valueOf", "__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__",
}  # fmt: skip


def one_line(text: object) -> str:
    """Write a text on one line, with what is not seen written out: ``\\n``, ``\\x1b``, ``\\u202e``."""
    return _HIDDEN.sub(_written_out, str(text))


def terminal_text(text: object) -> str:
    """Write a text of several lines so that a terminal shows it and does nothing else."""
    return _IN_LINES.sub(_written_out, str(text))


def html_text(text: object) -> str:
    """Write a text for an element or an attribute of HTML."""
    return html.escape(terminal_text(text))


def html_data(value: Any) -> str:
    """Write plain values as JSON that may stand in a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def chart_text(value: Any) -> Any:
    """Return a specification, rows or a name as Vega can draw them."""
    if isinstance(value, Mapping):
        return {key: chart_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [chart_text(item) for item in value]
    if not isinstance(value, str):
        return value
    return f"{value}\u00a0" if value in _OF_OBJECTS else terminal_text(value)


def markdown_text(text: object) -> str:
    """Write a text for Markdown, in which it is no HTML, no link and no code."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def markdown_code(text: object) -> str:
    """Write a text as code within a line of Markdown."""
    return f"`{one_line(text).replace('`', chr(39))}`"


def latex_text(text: object) -> str:
    """Write a text for LaTeX."""
    return "".join(_LATEX.get(letter, letter) for letter in one_line(text))


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Write rows as CSV; a text that a spreadsheet would compute gets an apostrophe in front."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_csv_cell(cell) for cell in row] for row in rows)
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    if not isinstance(value, str) or _is_number(value):
        return value
    text = one_line(value)
    return f"'{text}" if value.startswith(_FORMULA) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and text == text.strip()


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
