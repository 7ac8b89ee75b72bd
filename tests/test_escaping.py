"""A name of somebody else is a text in every format."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flsel.errors import UserError
from flsel.files import check_folder_name
from flsel.files.escaping import (
    chart_text,
    csv_text,
    html_data,
    html_text,
    latex_text,
    markdown_code,
    markdown_text,
    one_line,
    terminal_text,
)
from flsel.runner.terminal import open_console

HIDDEN = ["\x1b", "\x07", "\r", "\x9b", "\x7f", "\u202e", "\u2066", "\u2028", "\u200f", "\ud800", "\0"]
LINES: list[Callable[[str], str]] = [one_line, markdown_text, markdown_code, latex_text]


@given(text=st.text(st.characters(codec=None)))
def test_nothing_hidden_is_left(text: str) -> None:
    for write in LINES:
        assert not set(write(text)) & {*HIDDEN, "\n", "\t"}
    assert not set(terminal_text(text)) & set(HIDDEN)
    assert not set(html_text(text)) & set(HIDDEN)


@given(text=st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"])))
def test_plain_texts_stay_what_they_are(text: str) -> None:
    assert one_line(text) == terminal_text(text) == html.unescape(html_text(text)) == text
    assert json.loads(html_data({"name": text})) == {"name": text}
    cell = next(csv.reader(io.StringIO(csv_text([["a", text]]))))[1]
    assert cell in (text, f"'{text}")


@pytest.mark.parametrize("text", ["<!--<script>", "</script>", "a\u2028b", "<b>"])
def test_data_ends_no_script(text: str) -> None:
    written = html_data([text])
    assert not set(written) & {"<", "\u2028"}
    assert json.loads(written) == [text]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"), ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"), ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\\t=1"), ("\r=1", "'\\r=1"), ("-0.5", "-0.5"),
        ("+1e-3", "+1e-3"), (-0.5, "-0.5"), (None, ""),
        ("PowD:d=3", "PowD:d=3"), ("two\nlines", "two\\nlines"), ("-inf", "-inf"),
    ],
)  # fmt: skip
def test_a_cell_is_no_formula(text: Any, cell: str) -> None:
    assert next(csv.reader(io.StringIO(csv_text([[text, 1]])))) == [cell, "1"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("<img src=x onerror=alert(1)>", r"\<img src=x onerror=alert(1)>"),
        ("[a](javascript:alert(1))", r"[a]\(javascript:alert(1))"),
        ("![a](http://b)", r"![a]\(http://b)"),
        ("[a][b] [b]: http://c", r"[a]\[b] [b]\: http://c"),
        ("<javascript:alert(1)>", r"\<javascript:alert(1)>"),
        ("a|b`c\\", r"a\|b\`c" + "\\\\"),
        ("62.1 [60.0, 64.2]", "62.1 [60.0, 64.2]"),
    ],
)
def test_markdown_has_no_html_and_no_links(text: str, written: str) -> None:
    assert markdown_text(text) == written
    assert markdown_code("a`b\n<c>") == "`a'b\\n<c>`"


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString", "hasOwnProperty"])
def test_charts_have_no_names_of_javascript(name: str) -> None:
    assert chart_text([{"variant": name, "x": 1}]) == [{"variant": f"{name}\u00a0", "x": 1}]
    assert chart_text("PowD") == "PowD"


def test_latex_escapes_each_letter_once() -> None:
    assert latex_text("a_b\\{~}") == r"a\_b\textbackslash{}\{\textasciitilde{}\}"


def test_a_console_shows_codes_and_obeys_none() -> None:
    stream = io.StringIO()
    open_console(stream).print("a\x1b[2Jb\u202ec", markup=False)
    assert stream.getvalue() == "a\\x1b[2Jb\\u202ec\n"


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\u202eb", "a\tb"])
def test_names_of_folders_are_plain(name: str) -> None:
    with pytest.raises(UserError, match=r"output\.name must be a folder name without control characters"):
        check_folder_name("output.name", name)
