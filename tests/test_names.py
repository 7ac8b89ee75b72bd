"""Modules have names that say what is in them, and no two classes have the same name."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = sorted(p for place in ("flsel", "tune/flsel_tune") for p in (ROOT / place).rglob("*.py"))
# Names that were in use once and do not say what a module holds.
_WORDS = """
alone bank beside block board declaration declare drive extend feed fields gather inputs guard kept lean
limits memory mixing own play reading record reaper share standing tidy usage watch words
"""
UNCLEAR = set(_WORDS.split())
# Base classes of plug-in points, partitions and selectors of one paper.
SHARED = {"base", "fedcor", "fedgen", "fedgs", "fedpns"}


def test_modules_have_names_that_explain_them() -> None:
    assert len(MODULES) > 200
    assert [str(p.relative_to(ROOT)) for p in MODULES if p.stem in UNCLEAR] == []


def test_no_two_modules_have_one_name() -> None:
    names = Counter(path.stem for path in MODULES if not path.stem.startswith("__"))
    assert {name for name, times in names.items() if times > 1} == SHARED


def test_no_two_classes_have_one_name() -> None:
    names = [
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name for name, times in Counter(names).items() if times > 1} == set()
