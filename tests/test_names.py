"""Modules have names that say what is in them: names that clearer ones replaced are not taken again."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = sorted(p for place in ("flsel", "tune/flsel_tune") for p in (ROOT / place).rglob("*.py"))
UNCLEAR = {
    *(
        "alone",
        "bank",
        "beside",
        "block",
        "board",
        "declaration",
        "declare",
        "drive",
        "extend",
        "feed",
        "fields",
    ),
    *(
        "gather",
        "guard",
        "kept",
        "lean",
        "limits",
        "memory",
        "mixing",
        "own",
        "play",
        "reading",
        "reaper",
        "share",
    ),
    *("standing", "tidy", "usage", "watch", "words"),
}


def test_modules_have_names_that_explain_them() -> None:
    assert len(MODULES) > 200
    assert [str(p.relative_to(ROOT)) for p in MODULES if p.stem in UNCLEAR] == []
