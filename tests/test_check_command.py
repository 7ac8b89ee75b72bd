"""``flsel check``: what it prints and with which code it ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from flsel.commands import check
from flsel.commands.cli import main
from flsel.errors import UserError
from flsel.testing import CHECKS

SELECTORS = """
import numpy as np
from flsel.selector import Plan, Selector

class Steady(Selector):
    def select(self, view):
        return Plan.star(view.pool[: view.clients_per_round])

class Global(Selector):
    def select(self, view):
        return Plan.star(np.random.permutation(view.pool)[: view.clients_per_round])

class Failing(Selector):
    def select(self, view):
        return Plan.star(view.nothing)

class Greedy(Selector):
    def select(self, view):
        return Plan.star(view.pool)

class Forgets(Steady):
    def __init__(self, much=1):
        pass

class Grows(Steady):
    def weigh(self, view, updates):
        return updates.sizes * float("nan")
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "checked_ones.py").write_text(SELECTORS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("checked_ones", None)


@pytest.mark.parametrize("arguments", [["checked_ones.Steady"], ["PowD", "--d", "12"]])
def test_a_selector_that_keeps_the_contract(capsys, arguments):
    assert main(["check", *arguments]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in lines] == ["ok      "] * len(CHECKS)
    assert last.endswith(f"keeps the {len(CHECKS)} rules of the contract.")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "Global",
            "-> Global: the global generator of numpy.random must stay untouched; use view.rng "
            "(checked_ones.py, line 10)",
        ),
        ("Failing", "AttributeError: 'View' object has no attribute 'nothing' (checked_ones.py, line 15)"),
        ("Greedy", "(checked_ones.py, line 18)"),
        ("Forgets", "under their names and nothing else, it stores [] (checked_ones.py, line 22)"),
        ("Grows", "got [nan] of shape (1,) (checked_ones.py, line 26)"),
    ],
)
def test_a_selector_that_breaks_it(capsys, name, said):
    assert main(["check", f"checked_ones.{name}"]) == 1
    printed = capsys.readouterr().out
    assert said in printed
    broken = sum(line.startswith("broken") for line in printed.splitlines())
    assert broken
    assert f"{name} breaks {broken} of the {len(CHECKS)} rules" in printed


@pytest.mark.parametrize("arguments", [["nowhere.Mine"], ["MLP"], ["PowD", "--e", "1"], ["--d", "1"]])
def test_what_is_no_selector_is_one_sentence(capsys, arguments):
    assert main(["check", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("flsel: error: ")) == ("", 1)


def test_help(capsys):
    assert main(["check", "--help"]) == 0
    assert "usage: flsel check SELECTOR" in capsys.readouterr().out


def test_assertions_that_python_leaves_out_are_not_passed_for_checks() -> None:
    optimised: dict[str, Any] = {"__name__": "optimised"}
    exec(compile(Path(check.__file__).read_text(), "check", "exec", optimize=1), optimised)
    with pytest.raises(UserError, match="which python -O and PYTHONOPTIMIZE leave out"):
        optimised["main"](["Uniform"])
