"""``table.tex`` is a table to LaTeX, by its grammar: cells of a row, braces, commands, numbers, letters."""

from __future__ import annotations

import re
from pathlib import Path

import made
import numpy as np
import pytest

import flsel
from flsel.comparison.comparison import Comparison
from flsel.comparison.reporting.latex import COLUMNS, COST_COLUMNS

pytestmark = pytest.mark.usefixtures("here")
NOISE = np.random.default_rng(5).normal(0, 0.01, (4, 12))
COMMANDS = {
    "addlinespace", "approx", "begin", "begingroup", "bottomrule", "else", "emph", "end", "endgroup", "fi",
    "footnotesize", "ge", "ifdim", "infty", "le", "linewidth", "midrule", "multicolumn", "num", "resizebox",
    "scriptsize", "setlength", "tabcolsep", "textasciitilde", "textbackslash", "textbar", "textgreater",
    "textless", "toprule", "width",
}  # fmt: skip
"""What LaTeX, booktabs, graphicx and siunitx define of what a table may use."""


def check(text: str) -> int:
    """Return the number of rows of a table.

    Raises:
        AssertionError: If LaTeX would not set it, or not as it is meant.
    """
    text = re.sub(r"(?<!\\)%.*\n", "", text)
    assert set(re.findall(r"\\([a-zA-Z]+)", text)) <= COMMANDS
    bare = re.sub(r"\\\\|\\[{}%_&#$^]", "", text)
    depth = np.cumsum([(letter == "{") - (letter == "}") for letter in bare])
    assert depth.min() >= 0, "a brace closes nothing"
    assert depth[-1] == 0, "a brace is not closed"
    assert not set('#_^~"') & set(bare)
    plain = bare.replace(r"\ifdim\width>", "").split("$")
    assert len(plain) % 2 == 1, "a formula is not closed"
    assert not any(set("<>|") & set(part) for part in plain[::2]), "signs of formulas in words"
    for number in re.findall(r"\\num(?:\[[a-z-]+\])?\{(.*?)\}", text):
        float(number)
    (columns, body) = re.findall(
        r"\\begin\{tabular\}\{@\{\}(l[lr]*)@\{\}\}(.*)\\end\{tabular\}", text, re.DOTALL
    )[0]
    *rows, rest = re.split(r"\\\\(?:\[\d+pt\])?\n", body)
    assert not rest.strip()
    for row in rows:
        assert not row.lstrip().startswith("["), "an argument of the line break above"
        spans = [int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        assert len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) == len(columns), row
    return len(rows)


def compared(folder: Path, names: list[str], seeds: int, **more: str) -> Comparison:
    for at, name in enumerate(names):
        for seed in range(1, seeds + 1):
            end = 0.7 + 0.02 * at + NOISE[at, seed]
            made.run(
                folder / f"{at}-{seed}{''.join(more.values())}", made.climb(end), selector=name, seed=seed,
                evaluation__target=0.71, **{key: {"class_path": value} for key, value in more.items()},
            )  # fmt: skip
    return flsel.compare([folder / "*"], last=3)


HOSTILE = ["Uniform", "[a](b)", r"100 % & #3_$x^2~\{}", '<b>|"c"']


@pytest.mark.parametrize(
    ("names", "seeds"), [(["Uniform", "PowD"], 1), (["Uniform", "PowD", "AFL"], 6), (HOSTILE, 3)]
)
def test_every_table_is_one_to_latex(tmp_path, names, seeds):
    found = compared(tmp_path, names, seeds)
    assert check(found.to_latex()) >= len(names) + 2
    for columns in (COLUMNS, COST_COLUMNS, ("loss", "cost", "difference")):
        check(found.to_latex(columns))
        check(found.to_latex(columns, transposed=True))


def test_a_table_of_scenarios_is_one_to_latex(tmp_path):
    compared(tmp_path, ["Uniform", "PowD"], 2, availability="IDL")
    found = compared(tmp_path, ["Uniform", "PowD"], 2, availability="LN")
    assert check(found.to_latex()) >= 2 * 3 + 2


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        (" & -- &", " -- &"), ("\\num{", "\\num"), ("}\\endgroup", "\\endgroup"), ("\\toprule", "\\headrule"),
        ("$p$", "$p"), ("PowD &", "[PowD] &"), ("PowD &", "Pow_D &"), ("PowD &", "Pow<D &"),
        ("\\num{7", "\\num{x"),
    ],
)  # fmt: skip
def test_a_broken_table_is_found(tmp_path, there, instead):
    text = compared(tmp_path, ["Uniform", "PowD"], 2).to_latex()
    assert there in text
    with pytest.raises((AssertionError, ValueError)):
        check(text.replace(there, instead, 1))
